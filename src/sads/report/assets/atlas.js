"use strict";
// Geometries of published networks beside each other.

sads.parts.atlas = (section, atlas) => {
  const find = (name) => section.querySelector(`[id="${atlas.id}-${name}"]`);
  sads.startTables(section);
  const curves = (key) => atlas.entries.map((entry) => ({ name: entry.title, ...entry[key] }));
  sads.curveChart(find("spectrum"), curves("spectrum"), { x: "share of the directions, most avoided first", y: "eigenvalue / mean" });
  sads.curveChart(find("frequency"), curves("frequency"), { x: "frequency, 1 is the finest checkerboard", y: "energy / mean", dots: true });
  sads.curveChart(find("border"), curves("border"), { x: "distance from the border, 1 is the centre", y: "energy / mean", dots: true });
  for (const entry of atlas.entries) {
    for (const side of ["avoided", "preferred"]) {
      const place = section.querySelector(`[data-entry="${entry.number}"] [data-side="${side}"]`);
      const captions = d3.range(entry[side].count).map((i) => `${side} ${i + 1}`);
      sads.showDirections(place, entry[side], captions);
    }
  }
};
