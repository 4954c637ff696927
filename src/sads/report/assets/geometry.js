"use strict";
// The explorer of a geometry: a chosen rank, and everything on the page that shows it.

sads.reasons = {
  multiplicity: "equal by the structure of the output layer",
  equal: "their eigenvalues agree within the errors, perhaps by symmetry",
  unresolved: "more networks are needed to tell them apart",
};
sads.consequences = {
  multiplicity: "Any direction in it is as good as any other.",
  equal: "Any direction in it is as good as any other, as far as one can tell.",
  unresolved: "The subspace is sure, its members are not.",
};
sads.mostWork = 4e6; // numbers of members that are averaged over for a cluster's pictures

// Directions of a geometry, made of the eigenvectors of its factor when they are asked for.
sads.directions = (geometry) => {
  const packed = sads.unpack(geometry.vectors);
  const order = geometry.order && sads.unpack(geometry.order);
  const rows = geometry.kept && new Map(geometry.kept.map((column, row) => [column, row]));
  const dimension = geometry.values.length;
  return (index) => {
    const column = Math.floor(index / geometry.groups);
    const row = rows ? rows.get(column) : column;
    if (row === undefined) return null;
    const vector = new Float64Array(dimension);
    const first = (index % geometry.groups) * geometry.size;
    for (let p = 0; p < geometry.size; p++) {
      const place = order ? order[first + p] : first + p;
      vector[place] = packed[row * geometry.size + p] * geometry.scales[row];
    }
    return vector;
  };
};

// Colours of a direction: grey for one channel, from black to white; three channels as colours.
sads.paintVector = (canvas, vector, planes, choice = "strongest") => {
  const { channels, height, width } = planes;
  const size = height * width;
  const limit = vector.reduce((most, value) => Math.max(most, Math.abs(value)), 0) || 1;
  const share = (channel, i) => 0.5 + vector[channel * size + i] / limit / 2;
  if (choice === "all" && channels === 3) {
    const color = (x, y) => [0, 1, 2].map((c) => Math.round(255 * share(c, y * width + x)));
    sads.paint(canvas, width, height, color);
    return { limit, channel: null };
  }
  let channel = Number(choice);
  if (Number.isNaN(channel)) {
    const norms = d3.range(channels).map((c) => d3.sum(vector.slice(c * size, (c + 1) * size), (v) => v * v));
    channel = d3.maxIndex(norms);
  }
  sads.paint(canvas, width, height, (x, y) => sads.grey(share(channel, y * width + x)));
  return { limit, channel };
};

sads.paintEnergy = (canvas, energy, { height, width }) => {
  const most = energy.reduce((a, b) => Math.max(a, b), 0) || 1;
  sads.paint(canvas, width, height, (x, y) => sads.magma(energy[y * width + x] / most));
};

sads.parts.geometry = (section, geometry) => {
  const find = (selector) => section.querySelector(selector);
  const dimension = geometry.values.length;
  const planes = sads.planes(geometry.shape);
  const vectorOf = sads.directions(geometry);
  const ranks = d3.range(1, dimension + 1);
  const slider = find(".stepper input[type=range]");
  const search = find(".search input");
  const clusterOf = (index) =>
    geometry.clusters.find((cluster) => cluster.start <= index && index < cluster.stop) ?? null;

  let chosen = 0; // the rank, from 0, that stays
  let shown = -1; // the one on the page, perhaps only pointed at
  const charts = [];

  // Charts with a mark at the chosen rank, which is moved without drawing again.
  const rankChart = (figure, options) => {
    const state = {};
    const draw = sads.chart(figure, options, (svg) => {
      const scale = svg.scale("x");
      const { height, marginTop, marginBottom } = state.options;
      const line = d3.select(svg).append("line").attr("stroke", "var(--ink)").attr("stroke-width", 1.5);
      line.attr("y1", marginTop).attr("y2", height - marginBottom);
      state.mark = (index) => {
        const x = scale.apply(index + 1);
        line.attr("x1", x).attr("x2", x);
      };
      state.mark(shown);
      const rankAt = (event) => {
        const box = svg.getBoundingClientRect();
        const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
        return Math.round(Math.min(dimension, Math.max(1, scale.invert(x)))) - 1;
      };
      svg.addEventListener("pointermove", (event) => {
        if (event.pointerType === "mouse" && !event.buttons) show(rankAt(event));
        else choose(rankAt(event));
      });
      svg.addEventListener("pointerdown", (event) => {
        choose(rankAt(event));
        slider.focus({ preventScroll: true }); // so that the arrow keys go on from here
        event.preventDefault();
      });
      svg.addEventListener("pointerleave", () => show(chosen));
    });
    state.draw = draw;
    state.keep = (chosenOptions) => (state.options = chosenOptions);
    charts.push(state);
    return state;
  };

  const shades = () =>
    Plot.rectX(geometry.clusters, {
      x1: (cluster) => cluster.start + 0.5,
      x2: (cluster) => cluster.stop + 0.5,
      fill: "var(--shade)",
    });
  const axis = { label: "rank", domain: [0.5, dimension + 0.5], ticks: 6, tickFormat: "d" };
  const margins = { marginTop: 16, marginBottom: 42 };

  const logarithmic = find("[data-log]");
  const spectrum = rankChart(find(`[id="${geometry.id}-spectrum"]`), (width) => {
    const log = logarithmic.checked;
    const positive = geometry.values.filter((value) => value > 0);
    const least = Math.min(...positive) / 10;
    const rows = ranks.map((rank) => {
      const [value, error] = [geometry.values[rank - 1], geometry.valueErrors[rank - 1] ?? 0];
      const low = value - 2 * error;
      return { rank, value, low: log ? Math.max(low, least) : low, high: value + 2 * error };
    });
    const drawn = log ? rows.filter((row) => row.value > 0) : rows;
    return spectrum.keep({
      width,
      ...margins,
      height: 300,
      label: `Eigenvalues of ${geometry.title}, from ${sads.number(geometry.values[0])} to ${sads.number(geometry.values[dimension - 1])}`,
      x: axis,
      y: { type: log ? "log" : "linear", label: "eigenvalue", grid: true, ...(log ? sads.logTicks(positive) : {}) },
      marks: [
        shades(),
        Plot.areaY(drawn, { x: "rank", y1: "low", y2: "high", fill: "var(--blue)", fillOpacity: 0.3 }),
        Plot.lineY(drawn, { x: "rank", y: "value", stroke: "var(--blue)", strokeWidth: 2 }),
        dimension < 60 ? Plot.dot(drawn, { x: "rank", y: "value", fill: "var(--blue)", r: 3 }) : null,
      ],
    });
  });
  logarithmic.addEventListener("change", spectrum.draw);

  const certificate = rankChart(find(`[id="${geometry.id}-certificate"]`), (width) => {
    const angle = (index) => Math.max(1e-4, geometry.angleErrors[index] ?? Math.PI / 2);
    const rows = ranks.map((rank) => ({
      rank,
      angle: angle(rank - 1),
      color: geometry.resolved[rank - 1] ? "var(--blue)" : "var(--grey)",
    }));
    return certificate.keep({
      width,
      ...margins,
      height: 210,
      label: `Angle errors: ${geometry.resolved.filter((yes) => yes).length} of ${dimension} directions are resolved to ${geometry.tolerance} radians`,
      x: axis,
      y: { type: "log", label: "angle error (rad)", domain: [7e-5, 3], ticks: 4, tickFormat: "~g", grid: true },
      marks: [
        shades(),
        Plot.ruleY([geometry.tolerance], { stroke: "var(--ink)", strokeDasharray: "2,3" }),
        Plot.dot(rows, { x: "rank", y: "angle", fill: "color", r: dimension > 600 ? 1.2 : 2.2 }),
        Plot.ruleY(geometry.clusters, {
          y: (cluster) => Math.max(1e-4, cluster.angle_error ?? Math.PI / 2),
          x1: (cluster) => cluster.start + 0.6,
          x2: (cluster) => cluster.stop + 0.4,
          stroke: "var(--orange)",
          strokeWidth: 2.5,
        }),
      ],
    });
  });

  sads.legend(find(`[id="${geometry.id}-certificate"]`), {
    resolved: "var(--blue)",
    alone: "var(--grey)",
    "subspace of its cluster": "var(--orange)",
  });

  const columns = () => ({
    rank: ranks,
    eigenvalue: geometry.values,
    "eigenvalue error": geometry.valueErrors,
    "angle error": geometry.angleErrors,
    resolved: geometry.resolved.map((yes) => (yes ? "yes" : "no")),
    "first rank it may have": geometry.rankLow.map((rank) => rank + 1),
    "last rank it may have": geometry.rankHigh.map((rank) => rank + 1),
    "cluster from rank": ranks.map((rank) => (clusterOf(rank - 1)?.start ?? null) && clusterOf(rank - 1).start + 1),
    "cluster to rank": ranks.map((rank) => clusterOf(rank - 1)?.stop ?? null),
  });
  for (const name of ["spectrum", "certificate"]) {
    sads.offerCsv(find(`[id="${geometry.id}-${name}"]`), columns);
  }

  // The pictures of a direction.
  const channel = find("[data-channel]");
  const canvas = find("[data-vector]");
  const fourier = find("[data-fourier]");
  let vector = vectorOf(0);
  let energy = null;
  let plane = 0; // the channel that is shown; null for colours
  const valueAt = (x, y) => {
    if (!vector) return "";
    const i = y * planes.width + x;
    const size = planes.height * planes.width;
    const seen = plane === null ? d3.range(planes.channels) : [plane];
    return `(${y}, ${x}): ${seen.map((c) => sads.number(vector[c * size + i])).join(", ")}`;
  };
  const frequency = (x, y) => `frequency (${y - (planes.height >> 1)}, ${x - (planes.width >> 1)})`;
  sads.pointable(canvas, find("[data-vector-value]"), valueAt);
  sads.pointable(fourier, find("[data-fourier-value]"), (x, y) => {
    if (!energy) return "";
    const share = energy[y * planes.width + x] / d3.sum(energy);
    return `${frequency(x, y)}: ${sads.percent(share, 2)} of the energy`;
  });

  const paint = () => {
    for (const place of [canvas, fourier]) place.classList.toggle("absent", !vector);
    if (!vector) return;
    plane = sads.paintVector(canvas, vector, planes, channel?.value).channel;
    energy = sads.fourierEnergy(vector, planes);
    sads.paintEnergy(fourier, energy, planes);
  };
  channel?.addEventListener("change", paint);

  const certify = (index) => {
    const cluster = clusterOf(index);
    const [low, high] = [geometry.rankLow[index] + 1, geometry.rankHigh[index] + 1];
    const angle = geometry.angleErrors[index];
    const degrees = (radians) => `${sads.number(radians, 2)} rad (${sads.number((radians * 180) / Math.PI, 2)}°)`;
    const unsure = angle === null || angle >= Math.PI / 2;
    sads.terms(find("[data-terms]"), {
      rank: `${index + 1} of ${dimension}`,
      eigenvalue: sads.estimate(geometry.values[index], geometry.valueErrors[index]),
      "angle error": unsure ? "not determined alone" : degrees(angle),
      "order": low === high ? "sure" : `may be rank ${low} to ${high}`,
      certificate: cluster
        ? `one of ${cluster.stop - cluster.start} in a cluster, ranks ${cluster.start + 1} to ${cluster.stop}: ${sads.reasons[cluster.reason]}`
        : `resolved to ${geometry.tolerance} rad`,
      "subspace of the cluster": cluster && `sure to ${degrees(cluster.angle_error ?? Math.PI / 2)}, mean eigenvalue ${sads.estimate(cluster.value, cluster.value_error)}`,
      picture: vector ? null : "not in this report, which was made with fewer --directions",
    });
  };

  // The subspace of a cluster: a plane in it that one can turn in, and what no choice of basis changes.
  const panel = find("[data-cluster]");
  const turn = find("[data-turn]");
  const partner = find("[data-partner]");
  let members = null; // of the cluster whose pictures are drawn
  const turned = (index) => {
    const [a, b] = [vectorOf(index), vectorOf(Number(partner.value) - 1)];
    const angle = (Number(turn.value) * Math.PI) / 180;
    if (!a || !b) return null;
    return a.map((value, i) => Math.cos(angle) * value + Math.sin(angle) * b[i]);
  };
  const paintPlane = () => {
    const mixed = turned(shown);
    find("[data-first]").textContent = `u${shown + 1}`;
    find("[data-second]").textContent = `u${partner.value}`;
    find("[data-plane]").classList.toggle("absent", !mixed);
    if (mixed) sads.paintVector(find("[data-plane]"), mixed, planes, channel?.value);
  };
  let [where, spread] = [null, null];
  sads.pointable(find("[data-plane]"), find("[data-plane-value]"), (x, y) => `(${y}, ${x})`);
  sads.pointable(find("[data-where]"), find("[data-where-value]"), (x, y) =>
    where ? `(${y}, ${x}): ${sads.percent(where[y * planes.width + x] / d3.sum(where), 2)} of the energy` : "",
  );
  sads.pointable(find("[data-spread]"), find("[data-spread-value]"), (x, y) =>
    spread ? `${frequency(x, y)}: ${sads.percent(spread[y * planes.width + x] / d3.sum(spread), 2)}` : "",
  );
  const paintCluster = (cluster) => {
    const every = Math.ceil(((cluster.stop - cluster.start) * dimension) / sads.mostWork);
    const indices = d3.range(cluster.start, cluster.stop, every);
    const size = planes.height * planes.width;
    where = new Float64Array(size);
    spread = new Float64Array(size);
    let count = 0;
    for (const member of indices.map(vectorOf)) {
      if (!member) continue;
      count += 1;
      member.forEach((value, i) => (where[i % size] += value * value));
      sads.fourierEnergy(member, planes).forEach((value, i) => (spread[i] += value));
    }
    sads.paintEnergy(find("[data-where]"), where, planes);
    sads.paintEnergy(find("[data-spread]"), spread, planes);
    const total = cluster.stop - cluster.start;
    const part = count < total ? ` Pictures average ${count} of its ${total} members.` : "";
    find("[data-cluster-text]").textContent =
      `Ranks ${cluster.start + 1} to ${cluster.stop} share a subspace of ${total} dimensions: ` +
      `${sads.reasons[cluster.reason]}. ${sads.consequences[cluster.reason]}${part}`;
  };
  const showCluster = (index) => {
    const cluster = clusterOf(index);
    const several = cluster !== null && cluster.stop - cluster.start > 1;
    panel.hidden = !several;
    if (!several) {
      members = null;
      return;
    }
    if (members !== cluster) {
      members = cluster;
      partner.min = cluster.start + 1;
      partner.max = cluster.stop;
      paintCluster(cluster);
    }
    const other = index + 1 < cluster.stop ? index + 1 : cluster.start;
    partner.value = other + 1;
    paintPlane();
  };
  turn.addEventListener("input", paintPlane);
  partner.addEventListener("change", () => {
    const wanted = Math.round(Number(partner.value)) || Number(partner.min);
    partner.value = Math.min(Number(partner.max), Math.max(Number(partner.min), wanted));
    paintPlane();
  });
  channel?.addEventListener("change", () => members && paintPlane());

  const show = (index) => {
    if (index === shown) return;
    shown = index;
    vector = vectorOf(index);
    for (const chart of charts) chart.mark?.(index);
    paint();
    certify(index);
    showCluster(index);
    const name = `Direction ${index + 1} of ${dimension}`;
    canvas.setAttribute("aria-label", `${name}, as a picture`);
    fourier.setAttribute("aria-label", `${name}, energy over spatial frequencies`);
  };
  const choose = (index) => {
    chosen = Math.min(dimension - 1, Math.max(0, index));
    slider.value = chosen + 1;
    search.value = chosen + 1;
    slider.setAttribute("aria-valuetext", `rank ${chosen + 1}, eigenvalue ${sads.number(geometry.values[chosen])}`);
    show(chosen);
  };
  slider.addEventListener("input", () => choose(Number(slider.value) - 1));
  search.addEventListener("change", () => choose((Math.round(Number(search.value)) || 1) - 1));
  for (const button of section.querySelectorAll("[data-step]")) {
    button.addEventListener("click", () => choose(chosen + Number(button.dataset.step)));
  }
  // Arrow keys step from anywhere in the explorer that does not use them itself.
  find(".explorer").addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || event.target.matches("input, select, canvas")) return;
    event.preventDefault();
    choose(chosen + step);
  });
  choose(0);

  for (const basis of geometry.bases) sads.showBasis(find(`[id="${geometry.id}-${basis.name}"]`), basis);
};

// Energies of the vectors of a basis as a map, coloured by their logarithm.
sads.showBasis = (figure, basis) => {
  const layout = sads.unpack(basis.layout);
  const numbers = (content) => (content.type ? [...sads.unpack(content)] : content);
  const [energies, errors] = [numbers(basis.energies), numbers(basis.errors)];
  const known = typeof basis.labels[0] === "string"; // else the sizes of the picture
  const width = known ? 0 : basis.labels.at(-1);
  const label = (i) => (known ? basis.labels[i] : `(${Math.floor(i / width)}, ${i % width})`);
  const relative = energies.map((energy) => energy / basis.mean);
  const positive = relative.filter((value) => value > 0);
  const [low, high] = d3.extent(positive);
  const share = (value) =>
    high > low ? Math.log(Math.max(value, low) / low) / Math.log(high / low) : 0.5;
  const canvas = figure.querySelector(":scope > canvas");
  sads.paint(canvas, basis.columns, basis.rows, (x, y) =>
    sads.viridis(share(relative[layout[y * basis.columns + x]])),
  );
  sads.pointable(canvas, figure.querySelector("output"), (x, y) => {
    const i = layout[y * basis.columns + x];
    return `${label(i)}: ${sads.estimate(energies[i], errors[i])}, ${sads.number(relative[i], 3)} of the mean`;
  });
  canvas.setAttribute("aria-label", `Energies in the ${basis.name} basis, from ${sads.number(low, 3)} to ${sads.number(high, 3)} of the mean`);
  figure.querySelector("[data-low]").textContent = sads.number(low, 2);
  figure.querySelector("[data-high]").textContent = sads.number(high, 2);
  sads.paint(figure.querySelector("[data-bar]"), 128, 1, (x) => sads.viridis(x / 127));
  sads.offerCsv(figure, () => ({
    vector: energies.map((_, i) => label(i)),
    energy: energies,
    "energy error": errors,
    "in units of the mean": relative,
  }));
};
