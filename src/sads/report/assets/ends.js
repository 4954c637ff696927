"use strict";
// A geometry without a matrix: both ends of its spectrum, and energies along bases.

sads.parts.ends = (section, geometry) => {
  const find = (name) => section.querySelector(`[id="${geometry.id}-${name}"]`);
  for (const [side, end] of Object.entries(geometry.ends)) {
    const sign = side === "preferred" ? "≤" : "≥";
    const captions = end.bounds.map(
      ({ value, error }, i) =>
        `${side} ${i + 1}: λ ${sign} ${sads.estimate(value, error)}; found ${sads.number(end.found[i])}, residual ${sads.number(end.residuals[i], 2)}`,
    );
    sads.showDirections(section.querySelector(`[data-side="${side}"]`), end.images, captions);
  }
  for (const [name, curve] of Object.entries(geometry.curves)) {
    const x = name === "frequency" ? "frequency, 1 is the finest checkerboard" : "distance from the border, 1 is the centre";
    sads.curveChart(find(name), [{ name: geometry.title, ...curve }], { x, y: "energy / mean", dots: true });
  }
  for (const map of geometry.maps) sads.showBasis(find(map.name), map);
};
