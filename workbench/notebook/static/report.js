// Draws the report's charts in the page's theme, again when the theme changes, and in light ink on paper.
(function () {
  const figures = JSON.parse(document.getElementById("wb-figures").textContent);
  const config = JSON.parse(document.getElementById("wb-config").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const draw = (theme) => {
    for (const [name, themes] of Object.entries(figures)) {
      const box = document.getElementById("wb-chart-" + name);
      const figure = structuredClone(themes[theme]);
      if (!box.querySelector(".js-plotly-plot")) {
        const still = box.querySelector("svg");
        if (still) still.remove();
        box.appendChild(document.createElement("div"));
      }
      Plotly.react(box.querySelector("div"), figure.data, figure.layout, config);
    }
  };
  const screen = () => draw(dark.matches ? "dark" : "light");
  dark.addEventListener("change", screen);
  window.addEventListener("beforeprint", () => draw("light"));
  window.addEventListener("afterprint", screen);
  screen();
})();
