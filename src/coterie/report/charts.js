// Opens the details of a method's row; draws every chart of the page, as SVG, so that text can be searched and colours come from the style sheet.
for (const button of document.querySelectorAll("button[aria-controls]")) {
  button.addEventListener("click", () => {
    const shown = document.getElementById(button.getAttribute("aria-controls")).toggleAttribute("hidden") === false;
    button.setAttribute("aria-expanded", shown);
  });
}
// Panels are drawn as wide as the page lets them be: one or two of them, or one column of them on a phone, fill it.
const fill = (spec, width) => {
  const panel = spec.usermeta && spec.usermeta.panel, count = spec.usermeta && spec.usermeta.panels;
  if (!spec.columns || !count) return;
  const columns = Math.max(1, Math.min(spec.columns, count, Math.floor(width / (panel + 65))));
  const wider = Math.min(Math.floor(width / columns) - 70, 2.2 * panel);
  if (wider <= panel) return;
  const grow = (node) => {
    if (!node || typeof node !== "object") return;
    if (!Array.isArray(node) && typeof node.width === "number" && node.width > panel / 2) {
      const square = node.height === node.width;
      node.width = Math.round(node.width * wider / panel);
      if (square) node.height = Math.min(node.width, 420);
    }
    for (const key of Object.keys(node)) if (key !== "data" && key !== "config" && key !== "datasets") grow(node[key]);
  };
  grow(spec);
};
(async () => {
  const failed = [];
  for (const figure of document.querySelectorAll("figure")) {
    const box = figure.querySelector(".chart");
    const spec = JSON.parse(figure.querySelector("script").textContent);
    const width = box.clientWidth;
    spec.config.legend.columns = Math.max(1, Math.floor((width - 60) / 230));
    fill(spec, width);
    if (spec.columns) spec.columns = Math.max(1, Math.min(spec.columns, Math.floor(width / (spec.usermeta.panel + 65))));
    try {
      await vegaEmbed(box, spec, { renderer: "svg", actions: { export: true, source: false, compiled: false, editor: false } });
    } catch (error) {
      failed.push(figure.id);
      box.textContent = "This chart could not be drawn: " + error.message;
    }
  }
  document.documentElement.dataset.charts = failed.length ? "failed: " + failed.join(", ") : "drawn";
})();
