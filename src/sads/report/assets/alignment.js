"use strict";
// Data in a geometry.

// Numbers with a bar of two standard errors each, on rows by name and a logarithmic axis.
sads.intervals = (rows, label, colors, margin = 150) => {
  const longest = Math.floor(margin / 7); // characters of a name that fit
  const known = rows.filter((row) => row.value > 0);
  const least = Math.min(...known.map((row) => row.value)) / 10;
  const low = (row) => Math.max(least, row.value - 2 * (row.error ?? 0));
  const high = (row) => row.value + 2 * (row.error ?? 0);
  const ends = known.flatMap((row) => [low(row), high(row)]);
  return {
    x: { type: "log", label, grid: true, insetLeft: 14, insetRight: 14, ...sads.logTicks(ends) },
    y: {
      label: null,
      domain: rows.map((row) => row.name),
      tickFormat: (name) => (name.length > longest ? `${name.slice(0, longest - 1)}…` : name),
    },
    marginLeft: margin,
    height: 60 + 34 * rows.length,
    marks: [
      Plot.link(known, { x1: low, x2: high, y1: "name", y2: "name", stroke: colors, strokeWidth: 2 }),
      Plot.dot(known, { x: "value", y: "name", fill: colors, r: 5 }),
      Plot.text(known, { x: "value", y: "name", text: (row) => sads.number(row.value, 3), dy: -12, fill: "var(--ink)" }),
    ],
  };
};

sads.parts.alignment = (section, alignment) => {
  const find = (name) => section.querySelector(`[id="${alignment.id}-${name}"]`);
  const points = alignment.points.map(({ name, alpha }) => ({ name, ...alpha }));
  const color = (row) =>
    row.name.includes("minimum") ? "var(--green)" : row.name.includes("maximum") ? "var(--red)" : "var(--blue)";
  sads.chart(find("alpha"), () => ({
    ...sads.intervals(points, "alpha", color),
    label: points.map((point) => `${point.name} ${sads.estimate(point.value, point.error)}`).join("; "),
  }));
  sads.offerCsv(find("alpha"), () => ({
    rotation: points.map((point) => point.name),
    alpha: points.map((point) => point.value),
    "alpha error": points.map((point) => point.error),
  }));

  const tenths = alignment.tenths.map(({ value, error }, i) => ({
    tenth: i + 1,
    share: 100 * value,
    low: Math.max(0, 100 * (value - 2 * (error ?? 0))),
    high: 100 * (value + 2 * (error ?? 0)),
  }));
  sads.chart(find("tenths"), () => ({
    label: tenths.map((row) => `tenth ${row.tenth}: ${sads.number(row.share, 3)}%`).join("; "),
    marginTop: 34,
    x: { type: "band", label: "tenth of the directions, most avoided first" },
    y: { label: "energy of the data (%)", grid: true },
    marks: [
      Plot.barY(tenths, { x: "tenth", y: "share", fill: "var(--blue)" }),
      Plot.ruleX(tenths, { x: "tenth", y1: "low", y2: "high", stroke: "var(--ink)", strokeWidth: 2 }),
      Plot.text(tenths, { x: "tenth", y: "high", text: (row) => sads.number(row.share, 2), dy: -8, fill: "var(--ink)" }),
      Plot.ruleY([0], { stroke: "var(--line)" }),
    ],
  }));
  sads.offerCsv(find("tenths"), () => ({
    tenth: tenths.map((row) => row.tenth),
    "share of the energy": alignment.tenths.map((row) => row.value),
    "error of the share": alignment.tenths.map((row) => row.error),
  }));

  if (!alignment.examples) return;
  const floor = 1e-9 * Math.max(...alignment.energies, ...alignment.dataValues);
  const curve = (energies) =>
    alignment.values
      .map((value, i) => ({ value, energy: energies[i] }))
      .filter((row) => row.value > 1e-12 * alignment.values[0] && row.energy > floor);
  const [dots, most, least] = [
    curve(alignment.energies),
    curve(alignment.dataValues),
    curve([...alignment.dataValues].reverse()),
  ];
  sads.legend(find("spectra"), { "as they are": "var(--blue)", "at the minimum": "var(--green)", "at the maximum": "var(--red)" });
  sads.chart(find("spectra"), () => ({
    label: `Energy of the data along the ${alignment.values.length} directions of the network, against their eigenvalues`,
    height: 360,
    marginLeft: 70,
    x: { type: "log", reverse: true, label: "eigenvalue of the network, most avoided first", grid: true, ...sads.logTicks(dots.map((row) => row.value)) },
    y: { type: "log", label: "energy of the data", grid: true, ...sads.logTicks([...dots, ...most].map((row) => row.energy)) },
    marks: [
      Plot.line(most, { x: "value", y: "energy", stroke: "var(--red)", strokeWidth: 2 }),
      Plot.line(least, { x: "value", y: "energy", stroke: "var(--green)", strokeWidth: 2 }),
      Plot.dot(dots, { x: "value", y: "energy", fill: "var(--blue)", r: 2.6, fillOpacity: 0.75 }),
    ],
  }));
  sads.offerCsv(find("spectra"), () => ({
    rank: alignment.values.map((_, i) => i + 1),
    "eigenvalue of the network": alignment.values,
    "energy of the data along it": alignment.energies,
    "eigenvalue of the data": alignment.dataValues,
  }));
  alignment.examples.forEach((images, i) => {
    const canvas = section.querySelector(`[data-row="${i}"]`);
    sads.gallery(canvas, canvas.closest("figure").querySelector("output"), images);
  });
};
