"use strict";
// What several kinds of pages draw: curves of several geometries on one axis, rows of directions.

sads.manyColors = (count) =>
  d3.range(count).map((i) => (count <= sads.colors.length ? sads.colors[i] : d3.schemeObservable10[i % 10]));

// Curves [{name, x, y, errors}] on a logarithmic axis, with a band of two standard errors each.
sads.curveChart = (figure, curves, { x, y, dots = false }) => {
  const colors = sads.manyColors(curves.length);
  const rows = curves.map((curve) =>
    curve.x.map((place, i) => {
      const [value, error] = [curve.y[i], curve.errors?.[i] ?? 0];
      return { place, value, low: Math.max(value - 2 * error, value / 10), high: value + 2 * error };
    }),
  );
  const shown = rows.map((points) => points.filter((point) => point.value > 0));
  sads.legend(figure, Object.fromEntries(curves.map((curve, i) => [curve.name, colors[i]])));
  sads.chart(figure, () => ({
    label: `${figure.querySelector("h4").textContent} of ${curves.map((curve) => curve.name).join(", ")}`,
    marginTop: 28,
    x: { label: x },
    y: { type: "log", label: y, grid: true, ...sads.logTicks(shown.flat().map((point) => point.value)) },
    marks: [
      Plot.ruleY([1], { stroke: "var(--grey)" }),
      ...shown.flatMap((points, i) => [
        Plot.areaY(points, { x: "place", y1: "low", y2: "high", fill: colors[i], fillOpacity: 0.2 }),
        Plot.lineY(points, { x: "place", y: "value", stroke: colors[i], strokeWidth: 2 }),
        dots ? Plot.dot(points, { x: "place", y: "value", fill: colors[i], r: 3 }) : null,
      ]),
    ],
  }));
  const all = (key) => curves.flatMap((curve) => [...(curve[key] ?? curve.x.map(() => null))]);
  sads.offerCsv(figure, () => ({
    curve: curves.flatMap((curve) => curve.x.map(() => curve.name)),
    [x]: all("x"),
    [y]: all("y"),
    "standard error": all("errors"),
  }));
};

// Directions as pictures side by side, each with a caption: grey is zero.
sads.showDirections = (place, images, captions) => {
  const packed = sads.unpack(images.pixels);
  const size = images.rows * images.columns;
  const figures = captions.map((caption, number) => {
    const canvas = sads.element("canvas", { tabindex: "0", role: "img", "aria-label": caption });
    const output = sads.element("output", { "aria-live": "polite" });
    const at = (x, y) => packed[number * size + y * images.columns + x];
    sads.paint(canvas, images.columns, images.rows, (x, y) => sads.grey(0.5 + at(x, y) / 254));
    sads.pointable(canvas, output, (x, y) => `(${y}, ${x}): ${sads.number(at(x, y) * images.scales[number], 3)}`);
    return sads.element("figure", {}, canvas, sads.element("figcaption", {}, caption, output));
  });
  place.replaceChildren(...figures);
};
