// Says when the kernel that a panel belongs to no longer answers: its buttons look as before and do nothing.

const SILENT_MS = 9000; // the kernel says it is alive every 2 s, from a thread that a busy cell does not hold up
const LOST = "The kernel no longer answers, so this panel shows its last state. Run the cell again.";

function render({ model, el }) {
  const alert = document.createElement("div");
  alert.className = "wb-lost";
  alert.setAttribute("role", "alert");
  el.append(alert);
  let heard = null;
  const received = (message) => {
    if (message.kind !== "alive") return;
    heard = Date.now();
    alert.textContent = "";
  };
  const listen = setInterval(() => {
    if (heard && Date.now() - heard > SILENT_MS) alert.textContent = LOST;
  }, 2000);
  model.on("msg:custom", received);
  model.send({ kind: "ready" });
  return () => {
    clearInterval(listen);
    model.off("msg:custom", received);
  };
}

export default { render };
