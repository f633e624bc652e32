// Draws the figures of a notebook's page from the data that stand in it.
document.addEventListener("DOMContentLoaded", () => {
  for (const place of document.querySelectorAll(".output-figure")) {
    const { data, layout } = JSON.parse(place.querySelector("script").textContent);
    const width = place.clientWidth;
    // a figure that would have to shrink by much keeps its size and scrolls
    if (!layout.width || layout.width <= 1.4 * width) {
      delete layout.width;
      layout.autosize = true;
    }
    Plotly.newPlot(place, data, layout, { responsive: true, displaylogo: false });
  }
});
