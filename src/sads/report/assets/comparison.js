"use strict";
// Geometries beside each other.

sads.parts.comparison = (section, comparison) => {
  const find = (name) => section.querySelector(`[id="${comparison.id}-${name}"]`);
  for (const [key, x] of [["spectrum", "share of the directions, most avoided first"], ["frequency", "frequency, 1 is the finest checkerboard"]]) {
    const curves = comparison.geometries
      .filter((geometry) => geometry[key])
      .map((geometry) => ({ name: geometry.name, ...geometry[key] }));
    const y = key === "spectrum" ? "eigenvalue / mean" : "energy / mean";
    if (curves.length) sads.curveChart(find(key), curves, { x, y, dots: key === "frequency" });
    else find(key).hidden = true;
  }

  const numbers = section.querySelectorAll("[data-pair]");
  comparison.pairs.forEach((pair, i) => sads.showPair(section, numbers[i], comparison.id, pair));
};

sads.showPair = (section, place, id, pair) => {
  const number = Number(place.dataset.pair) + 1;
  const find = (name) => section.querySelector(`[id="${id}-${name}-${number}"]`);
  const ends = { "most avoided": pair.ends.avoided, "most preferred": pair.ends.preferred };
  const colors = { "most avoided": "var(--red)", "most preferred": "var(--green)" };

  sads.legend(find("ends"), colors);
  sads.chart(find("ends"), () => ({
    label: "What the ends share, by their size",
    x: { type: "log", label: "directions of each end, k", ticks: pair.sizes, tickFormat: "d" },
    y: { domain: [0, 1], label: "mean squared cosine", grid: true },
    marks: [
      Plot.lineY(pair.sizes, { x: pair.sizes, y: pair.chance, stroke: "var(--ink)", strokeDasharray: "2,3" }),
      ...Object.entries(ends).flatMap(([name, rows]) => [
        Plot.lineY(rows, { x: pair.sizes, y: "shared", stroke: colors[name], strokeWidth: 2 }),
        Plot.dot(rows, { x: pair.sizes, y: "shared", fill: colors[name], r: 3.5 }),
      ]),
    ],
  }));
  sads.offerCsv(find("ends"), () => ({
    k: pair.sizes,
    "avoided, mean squared cosine": pair.ends.avoided.map((row) => row.shared),
    "avoided, median principal angle": pair.ends.avoided.map((row) => row.median),
    "avoided, largest principal angle": pair.ends.avoided.map((row) => row.largest),
    "preferred, mean squared cosine": pair.ends.preferred.map((row) => row.shared),
    "preferred, median principal angle": pair.ends.preferred.map((row) => row.median),
    "preferred, largest principal angle": pair.ends.preferred.map((row) => row.largest),
    "by chance": pair.chance,
  }));

  const { ranks, matched, cosines } = pair.matches;
  const dots = ranks.map((rank, i) => ({ rank: rank + 1, match: matched[i] + 1, cosine: cosines[i] }));
  sads.chart(find("matches"), () => ({
    label: "Rank of each direction and of its nearest in the other geometry",
    x: { label: "rank in the first" },
    y: { label: "rank of its match", grid: true },
    marks: [
      Plot.line([1, dots.length], { x: [1, d3.max(ranks) + 1], y: [1, d3.max(ranks) + 1], stroke: "var(--line)" }),
      Plot.dot(dots, { x: "rank", y: "match", fill: "var(--blue)", r: (dot) => 1 + 3 * dot.cosine, fillOpacity: 0.6 }),
    ],
    r: { type: "identity" },
  }));
  sads.offerCsv(find("matches"), () => ({
    rank: dots.map((dot) => dot.rank),
    match: dots.map((dot) => dot.match),
    cosine: cosines,
  }));

  // Pictures of a pair, from the sections of their geometries.
  const [first, other] = [pair.first, pair.other].map((name) => sads.data.find((content) => content.id === name));
  const [one, two] = [first, other].map(sads.directions);
  const planes = sads.planes(first.shape);
  const slider = place.querySelector("input");
  const show = () => {
    const i = Number(slider.value);
    const pictures = { one: [one(ranks[i]), first, ranks[i]], two: [two(matched[i]), other, matched[i]] };
    for (const [name, [vector, geometry, rank]] of Object.entries(pictures)) {
      const canvas = place.querySelector(`[data-${name}]`);
      canvas.classList.toggle("absent", !vector);
      if (vector) sads.paintVector(canvas, vector, planes, planes.channels === 3 ? "all" : "strongest");
      place.querySelector(`[data-${name}-text]`).textContent = `${geometry.title}: rank ${rank + 1}`;
    }
    place.querySelector("[data-cosine]").textContent = `Cosine between them: ${sads.number(cosines[i], 3)}`;
    slider.setAttribute("aria-valuetext", `rank ${ranks[i] + 1}, match ${matched[i] + 1}`);
  };
  slider.addEventListener("input", show);
  show();
};
