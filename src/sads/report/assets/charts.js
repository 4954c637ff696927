"use strict";
// Charts by Observable Plot. A chart is drawn as wide as its place, and again when that changes.
// Colours are CSS variables, so that themes and printing need no drawing.

// One name for all charts: the style that Plot writes is then one text, which the page's content
// security policy allows by its hash.
sads.plotClass = "sads-plot";

// Draws `options(width)` into a figure of the page; `ready(svg)` is called after each drawing.
sads.chart = (figure, options, ready = () => {}) => {
  const place = figure.querySelector(".plot");
  const draw = () => {
    const width = Math.floor(place.clientWidth);
    if (width < 50) return;
    const chosen = options(width);
    const svg = Plot.plot({
      className: sads.plotClass,
      width,
      height: 300,
      marginLeft: 60,
      marginRight: 16,
      marginBottom: 42,
      style: { fontSize: "13px" },
      ...chosen,
    });
    svg.setAttribute("role", "img"); // what is read out is the label, not the parts
    svg.setAttribute("aria-label", chosen.label ?? figure.querySelector("h4").textContent);
    for (const part of svg.querySelectorAll("[aria-label], [aria-description]")) {
      part.removeAttribute("aria-label");
      part.removeAttribute("aria-description");
    }
    place.replaceChildren(svg);
    ready(svg);
  };
  let last = 0;
  new ResizeObserver(() => {
    const width = Math.floor(place.clientWidth);
    if (width !== last) {
      last = width;
      draw();
    }
  }).observe(place);
  return draw;
};

sads.colors = ["var(--blue)", "var(--orange)", "var(--green)", "var(--red)", "var(--violet)"];

// Ticks of a logarithmic axis: powers of ten, and what lies between them where these are few.
// Which of them D3 labels depends on how many it would have drawn itself; these it labels.
sads.logTicks = (values) => {
  const [low, high] = d3.extent(values.filter((value) => value > 0)).map(Math.log10);
  const decades = high - low;
  const step = Math.max(1, Math.ceil(decades / 7));
  const powers = d3.range(Math.floor(low) - 1, Math.ceil(high) + 1).filter((k) => k % step === 0);
  const between = decades > 3 ? [1] : decades > 1.5 ? [1, 3] : decades > 0.8 ? [1, 2, 5] : d3.range(1, 10);
  const ticks = powers
    .flatMap((k) => between.map((multiple) => multiple * 10 ** k))
    .filter((tick) => Math.log10(tick) >= low - 1e-9 && Math.log10(tick) <= high + 1e-9);
  if (ticks.length < 2) return { type: "linear" }; // so near each other that it is the same
  return { ticks, tickFormat: (value) => sads.number(value) };
};

// Names and colours of what a chart shows, above it.
sads.legend = (figure, colors) => {
  const entries = Object.entries(colors).map(([name, color]) => {
    const swatch = sads.element("span", { class: "swatch", "aria-hidden": "true" });
    swatch.style.background = color;
    return sads.element("li", {}, swatch, name);
  });
  figure.querySelector(".plot").before(sads.element("ul", { class: "legend" }, ...entries));
};
