"use strict";
// Geometries beside each other.

sads.parts.comparison = (section, comparison) => {
  const find = (name) => section.querySelector(`[id="${comparison.id}-${name}"]`);
  const titles = comparison.geometries.map((geometry) => geometry.title);
  const colors = Object.fromEntries(titles.map((title, i) => [title, sads.colors[i % sads.colors.length]]));

  const spectra = comparison.geometries.flatMap(({ title, relative }, i) =>
    relative.map((value, rank) => ({ i, title, share: (rank + 0.5) / relative.length, value })),
  );
  const frequencies = comparison.geometries.flatMap(({ title, frequencies: rows }, i) =>
    rows.map(([frequency, energy, count]) => ({ i, title, frequency, energy, count })),
  );
  const lines = (rows, x, y, dots) =>
    comparison.geometries.flatMap((_, i) => {
      const mine = rows.filter((row) => row.i === i && row[y] > 0);
      const color = sads.colors[i % sads.colors.length];
      const line = Plot.lineY(mine, { x, y, stroke: color, strokeWidth: 2 });
      return dots ? [line, Plot.dot(mine, { x, y, fill: color, r: 3 })] : [line];
    });
  const positive = (rows, y) => rows.map((row) => row[y]).filter((value) => value > 0);

  sads.legend(find("spectra"), colors);
  sads.chart(find("spectra"), () => ({
    label: `Spectra of ${titles.join(" and ")}`,
    x: { label: "share of the directions, most avoided first", domain: [0, 1], percent: false },
    y: { type: "log", label: "eigenvalue / mean", grid: true, ...sads.logTicks(positive(spectra, "value")) },
    marks: [Plot.ruleY([1], { stroke: "var(--grey)" }), ...lines(spectra, "share", "value")],
  }));
  sads.offerCsv(find("spectra"), () => ({
    geometry: spectra.map((row) => row.title),
    "share of directions": spectra.map((row) => row.share),
    "eigenvalue in units of the mean": spectra.map((row) => row.value),
  }));

  if (frequencies.length) {
    sads.legend(find("frequencies"), colors);
    sads.chart(find("frequencies"), () => ({
      label: `Energy against frequency of ${titles.join(" and ")}`,
      x: { label: "frequency (cycles a pixel)" },
      y: { type: "log", label: "energy / mean", grid: true, ...sads.logTicks(positive(frequencies, "energy")) },
      marks: [Plot.ruleY([1], { stroke: "var(--grey)" }), ...lines(frequencies, "frequency", "energy", true)],
    }));
    sads.offerCsv(find("frequencies"), () => ({
      geometry: frequencies.map((row) => row.title),
      "frequency in cycles a pixel": frequencies.map((row) => row.frequency),
      "energy in units of the mean": frequencies.map((row) => row.energy),
      vectors: frequencies.map((row) => row.count),
    }));
  } else find("frequencies").hidden = true;

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
