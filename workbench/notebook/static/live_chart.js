// One live chart. The kernel holds the figure; a view asks for it, then takes changes, and asks again when it missed one.
// First view, page reload, second tab and lost messages are all the same path: "ready {have}".

const PLOTLY = Symbol.for("loader-workbench.plotly");
const ASK_AGAIN_MS = 4000;
const SILENT_MS = 9000; // the kernel says it is alive every 2 s, from a thread that a busy cell does not hold up
const PLOT_TOP_PX = 26; // room for plotly's own buttons
const LOST =
  "The kernel no longer answers, so this panel shows its last state. Run the cell again: finished trials are kept in the store.";

// plotly.js comes from the kernel, gzipped, once a page: no other host is asked.
function plotly(model) {
  const page = (globalThis[PLOTLY] ??= {});
  page.loaded ??= new Promise((done, failed) => Object.assign(page, { done, failed }));
  const ask = () => model.send({ kind: "need_plotly" });
  if (!page.asked) {
    page.asked = true;
    ask();
  }
  const again = setInterval(() => (page.plotly ? clearInterval(again) : ask()), ASK_AGAIN_MS);
  page.loaded.finally(() => clearInterval(again));
  return page.loaded;
}

async function receivePlotly(buffer) {
  const page = globalThis[PLOTLY];
  if (page.plotly || page.unpacking) return;
  page.unpacking = true;
  try {
    const bytes = new Blob([buffer]).stream().pipeThrough(new DecompressionStream("gzip"));
    page.plotly = await evaluated(await new Response(bytes).text());
    page.done(page.plotly);
  } catch (error) {
    page.failed(error);
  }
}

// As a CommonJS module, so that a page's own require.js or Plotly is left alone; by a blob: script where eval is not allowed.
async function evaluated(source) {
  try {
    const module = { exports: {} };
    new Function("module", "exports", "define", source)(module, module.exports, undefined);
    return module.exports;
  } catch (error) {
    if (!(error instanceof EvalError)) throw error;
    const wrapped = `globalThis.__wb=(function(){const module={exports:{}},exports=module.exports;let define;${source}
      return module.exports})()`;
    const url = URL.createObjectURL(new Blob([wrapped], { type: "text/javascript" }));
    await new Promise((done, failed) => {
      const script = Object.assign(document.createElement("script"), { src: url, onload: done, onerror: failed });
      document.head.appendChild(script);
    });
    return globalThis.__wb;
  }
}

// The figure names its inks; the page says what they are. So a chart is right in any theme, and after it changes.
function inks(node) {
  const style = getComputedStyle(node);
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const read = (name, light, night) => style.getPropertyValue(name).trim() || (dark ? night : light);
  return {
    "@text": read("--jp-ui-font-color1", "#1f2328", "#e6e9ec"),
    "@muted": read("--jp-ui-font-color2", "#59636e", "#a3adb8"),
    "@grid": read("--jp-border-color2", "#d9dee3", "#3a424b"),
    "@paper": read("--jp-layout-color1", "#ffffff", "#14181d"),
    "@panel": read("--jp-layout-color2", "#f5f7f9", "#1e242b"),
    "@alert": read("--jp-error-color1", "#b42318", "#ff8f80"),
  };
}

function inked(value, colours) {
  if (typeof value === "string") return colours[value] ?? value;
  if (Array.isArray(value)) return value.map((one) => inked(one, colours));
  if (value && typeof value === "object")
    return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, inked(one, colours)]));
  return value;
}

// The title as text of the page above the chart, where it wraps by itself; words only, never markup.
function headed(heading, layout) {
  const written = new DOMParser().parseFromString((layout.title?.text ?? "").replaceAll("<br>", " "), "text/html");
  const title = document.createElement("b");
  const subtitle = document.createElement("span");
  title.textContent = written.querySelector("b")?.textContent ?? "";
  subtitle.textContent = written.querySelector("span")?.textContent ?? "";
  heading.replaceChildren(title, subtitle);
  layout.title = { text: "" };
  layout.margin = { ...layout.margin, t: PLOT_TOP_PX };
}

// The legend as text of the page below the chart: it wraps, and leaves the plot the room that it does not need.
const DASHES = { dash: "6 3", dot: "2 3", dashdot: "6 3 2 3", longdash: "9 4", longdashdot: "9 4 2 4" };
const SHAPES = {
  circle: "M14 3a4 4 0 1 0 .01 0z",
  square: "M10.5 3.5h7v7h-7z",
  diamond: "M14 2l5 5-5 5-5-5z",
  "triangle-up": "M14 2l5 9h-10z",
  cross: "M12.5 2h3v3.5H19v3h-3.5V12h-3V8.5H9v-3h3.5z",
  x: "M10 3l8 8m0-8l-8 8",
  "x-thin": "M10 3l8 8m0-8l-8 8",
  hourglass: "M10 2h8l-8 10h8z",
  pentagon: "M14 2l5 3.6-1.9 5.9h-6.2L9 5.6z",
  star: "M14 1l1.7 4 4.3.4-3.2 2.9 1 4.2-3.8-2.2-3.8 2.2 1-4.2L8 5.4l4.3-.4z",
};

function swatch({ mode, line, marker }) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const part = (given) => {
    const path = document.createElementNS(svg.namespaceURI, "path");
    Object.entries(given).forEach(([name, value]) => path.setAttribute(name, value));
    svg.append(path);
  };
  Object.entries({ width: 28, height: 14, "aria-hidden": true }).forEach(([name, value]) => svg.setAttribute(name, value));
  if (mode.includes("lines"))
    part({ d: "M0 7h28", stroke: line.color, "stroke-width": 2, "stroke-dasharray": DASHES[line.dash] ?? "none" });
  const symbol = [marker.symbol].flat()[0];
  const ink = [marker.color].flat()[0];
  const shape = SHAPES[symbol.replace("-open", "")] ?? SHAPES.diamond;
  part({ d: shape, fill: symbol.endsWith("-open") ? "none" : ink, stroke: ink, "stroke-width": 1.5 });
  return svg;
}

function legended(legend, data, layout) {
  layout.showlegend = false;
  const named = data.filter((trace) => trace.type === "scatter" && trace.name && trace.showlegend !== false);
  legend.replaceChildren(
    ...named.map((trace) => {
      const entry = document.createElement("span");
      entry.append(swatch(trace), trace.name);
      return entry;
    }),
  );
}

function applied(figure, changes) {
  for (const { path, value } of changes) {
    let node = figure;
    for (const step of path.slice(0, -1)) node = node[step];
    node[path.at(-1)] = value;
  }
}

function render({ model, el }) {
  const box = document.createElement("div"); // el itself belongs to ipywidgets, which rewrites its style
  box.className = "wb-live";
  box.style.cssText = `display:flex;flex-direction:column;width:100%;height:${model.get("height")}px;overflow:hidden`;
  box.setAttribute("role", "group");
  const heading = document.createElement("p");
  heading.className = "wb-live-title";
  const frame = document.createElement("div");
  frame.style.cssText = "position:relative;flex:1 1 auto;min-height:0;overflow:hidden";
  frame.textContent = "Waiting for the chart …";
  const legend = document.createElement("p");
  legend.className = "wb-live-legend";
  box.append(heading, frame, legend);
  const chart = document.createElement("div");
  chart.style.cssText = "position:absolute;inset:0";
  const alert = document.createElement("div");
  alert.className = "wb-lost";
  alert.setAttribute("role", "alert");
  el.append(alert, box);

  let library = null;
  let figure = null;
  let have = -1;
  let heard = null;
  let queued = false;
  const ready = () => model.send({ kind: "ready", have });

  const name = () => box.setAttribute("aria-label", model.get("label"));
  const draw = () => {
    queued = false;
    if (!library || !figure || !frame.clientWidth) return; // hidden: the observer of its size calls again
    const { data, layout } = inked(figure, inks(box));
    headed(heading, layout);
    legended(legend, data, layout);
    layout.width = frame.clientWidth;
    layout.height = frame.clientHeight;
    layout.datarevision = have;
    const first = !chart.isConnected;
    if (first) frame.replaceChildren(chart);
    library.react(chart, data, layout, { ...model.get("config"), responsive: false });
    if (first)
      chart.on("plotly_click", (event) => {
        const key = event.points?.[0]?.customdata;
        if (key !== undefined && key !== null) model.send({ kind: "select", key });
      });
  };
  const later = () => {
    if (queued) return;
    queued = true;
    requestAnimationFrame(draw);
  };

  const received = (message, buffers) => {
    if (message.kind === "plotly") receivePlotly(buffers[0]);
    else if (message.kind === "figure") {
      if (message.version < have) return;
      figure = message.figure;
      have = message.version;
      later();
    } else if (message.kind === "changes") {
      if (message.version <= have) return;
      if (message.since !== have) return ready();
      applied(figure, message.changes);
      have = message.version;
      later();
    } else if (message.kind === "alive") {
      heard = Date.now();
      alert.textContent = "";
    }
  };
  const listen = setInterval(() => {
    if (heard && Date.now() - heard > SILENT_MS) {
      alert.textContent = LOST;
      heard = heard - SILENT_MS; // stays silent until the kernel speaks again
    }
  }, 2000);

  const sizes = new ResizeObserver(later);
  sizes.observe(frame);
  const themes = new MutationObserver(later);
  themes.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-name", "data-jp-theme-light", "class"] });
  model.on("msg:custom", received);
  model.on("change:label", name);
  name();
  ready();
  plotly(model).then(
    (loaded) => {
      library = loaded;
      later();
    },
    (error) => {
      alert.textContent = `The chart cannot be drawn here: ${error}`;
      model.send({ kind: "cannot_draw", why: String(error) });
    },
  );
  return () => {
    clearInterval(listen);
    sizes.disconnect();
    themes.disconnect();
    model.off("msg:custom", received);
    model.off("change:label", name);
    if (library && chart.isConnected) library.purge(chart);
  };
}

export default { render };
