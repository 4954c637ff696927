"use strict";
// A training run: its loss, its distances, its samples.

sads.mostPoints = 2000; // of a curve that is drawn

sads.parts.training = (section, run) => {
  const find = (name) => section.querySelector(`[id="${run.id}-${name}"]`);
  if (find("loss")) sads.showLosses(find("loss"), sads.unpack(run.losses));
  for (const name of ["sw2", "msw2"]) {
    if (find(name)) sads.showDistances(find(name), run.distances, name);
  }
  if (find("levels")) sads.showLevels(find("levels"), run.denoising);
  const canvas = section.querySelector("[data-samples]");
  if (canvas) {
    const place = canvas.parentElement;
    const width = sads.planes(run.images.shape).width;
    const zoom = Math.max(1, Math.min(8, Math.round(64 / width)));
    const columns = Math.max(1, Math.min(run.images.count, Math.floor(place.clientWidth / zoom / (width + 1))));
    const output = canvas.closest("figure").querySelector("output");
    sads.gallery(canvas, output, run.images, columns);
    section.querySelector("[data-greys]").textContent =
      `Black is ${sads.number(run.images.black, 3)}, white is ${sads.number(run.images.white, 3)}.`;
  }
};

sads.showLosses = (figure, losses) => {
  const window_ = Math.max(1, Math.floor(losses.length / 100));
  const every = Math.ceil(losses.length / sads.mostPoints);
  const points = d3.range(0, losses.length, every).map((i) => ({ update: i + 1, loss: losses[i] }));
  const means = d3.range(0, losses.length - window_ + 1, window_).map((start) => ({
    update: start + (window_ + 1) / 2,
    loss: d3.mean(losses.subarray(start, start + window_)),
  }));
  const positive = (rows) => rows.filter((row) => row.loss > 0);
  const single = every > 1 ? `one update in ${every}` : "every update";
  sads.legend(
    figure,
    window_ > 1 ? { [single]: "var(--grey)", [`mean of ${window_}`]: "var(--blue)" } : { [single]: "var(--blue)" },
  );
  sads.chart(figure, () => ({
    label: `Loss of ${losses.length} updates, at the end ${sads.number(means.at(-1).loss)}`,
    x: { label: "update" },
    y: { type: "log", label: "loss", grid: true, ...sads.logTicks(points.map((point) => point.loss)) },
    marks: [
      Plot.lineY(positive(points), { x: "update", y: "loss", stroke: "var(--grey)", strokeOpacity: 0.6 }),
      Plot.lineY(positive(means), { x: "update", y: "loss", stroke: "var(--blue)", strokeWidth: 2 }),
    ],
  }));
  sads.offerCsv(figure, () => ({
    update: d3.range(1, losses.length + 1),
    loss: [...losses],
  }));
};

sads.showLevels = (figure, { levels, level_losses: losses, loss }) => {
  const rows = levels.map((level, i) => ({ level, loss: losses[i] }));
  const shown = rows.filter((row) => row.loss > 0);
  sads.chart(figure, () => ({
    label: `Held-out loss at ${levels.length} noise levels, on average ${sads.estimate(loss.value, loss.error)}`,
    marginTop: 28,
    x: { label: "noise level" },
    y: { type: "log", label: "squared error", grid: true, ...sads.logTicks([...losses, 1]) },
    marks: [
      Plot.ruleY([1], { stroke: "var(--ink)", strokeDasharray: "2,3" }),
      Plot.lineY(shown, { x: "level", y: "loss", stroke: "var(--blue)", strokeWidth: 2 }),
      Plot.dot(shown, { x: "level", y: "loss", fill: "var(--blue)", r: 3 }),
    ],
  }));
  sads.offerCsv(figure, () => ({ "noise level": levels, "held-out loss": losses }));
};

sads.showDistances = (figure, distances, name) => {
  const rows = distances
    .filter((row) => row[name] !== null)
    .map((row) => ({ name: row.name, ...(name === "sw2" ? row.sw2 : { value: row.msw2, error: 0 }) }));
  const color = (row) =>
    row.name.startsWith("samples") ? "var(--blue)" : /^(real|fresh)/.test(row.name) ? "var(--green)" : "var(--grey)";
  sads.chart(figure, (width) => ({
    ...sads.intervals(rows, name === "sw2" ? "SW2" : "MSW2", color, width < 480 ? 130 : 265),
    label: rows.map((row) => `${row.name} ${sads.estimate(row.value, row.error)}`).join("; "),
  }));
  sads.offerCsv(figure, () => ({
    what: rows.map((row) => row.name),
    [name.toUpperCase()]: rows.map((row) => row.value),
    error: rows.map((row) => row.error),
  }));
};
