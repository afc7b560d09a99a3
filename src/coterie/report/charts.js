// Draws every chart of the page. As SVG, so that text can be searched and colours come from the style sheet.
(async () => {
  const failed = [];
  for (const figure of document.querySelectorAll("figure")) {
    const box = figure.querySelector(".chart");
    const spec = JSON.parse(figure.querySelector("script").textContent);
    const width = box.clientWidth;
    spec.config.legend.columns = Math.max(1, Math.floor((width - 60) / 230));
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
