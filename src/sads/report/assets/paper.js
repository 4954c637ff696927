"use strict";
// Tables that sort and filter, and the claims.

// What a cell is sorted by: its number if it has or begins with one, else its text.
sads.sortKey = (cell) => {
  if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
  const text = cell.textContent.trim();
  const number = parseFloat(text.replaceAll(",", ""));
  return Number.isNaN(number) ? text.toLowerCase() : number;
};

sads.startSorting = (table) => {
  const heads = [...table.querySelectorAll("thead th")];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows].map((row) => [sads.sortKey(row.cells[column]), row]);
      const rank = (key) => (key === "" ? 2 : typeof key === "number" ? 0 : 1); // empty ones last
      rows.sort(([a], [b]) => {
        if (rank(a) !== rank(b)) return rank(a) - rank(b);
        return (falling ? -1 : 1) * (a < b ? -1 : a > b ? 1 : 0);
      });
      table.tBodies[0].append(...rows.map(([, row]) => row));
    });
  });
};

// Words that must all be in a row, wherever.
sads.matches = (row, words) => {
  const text = row.textContent.toLowerCase();
  return words.toLowerCase().split(/\s+/).every((word) => text.includes(word));
};

// The rows of a table that can be seen, as columns by title; of estimates the errors, too.
sads.tableColumns = (table) => {
  const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden);
  const columns = {};
  [...table.querySelectorAll("thead th")].forEach((head, i) => {
    const title = head.textContent.trim();
    const cells = rows.map((row) => row.cells[i]);
    const kept = (cell, name, other) => (name in cell.dataset ? Number(cell.dataset[name]) : other);
    columns[title] = cells.map((cell) => kept(cell, "value", cell.textContent.trim()));
    if (cells.some((cell) => "error" in cell.dataset)) {
      columns[`${title} error`] = cells.map((cell) => kept(cell, "error", null));
    }
  });
  return columns;
};

// All tables of a section: they sort, and their fields above filter and save them.
sads.startTables = (section) => {
  for (const table of section.querySelectorAll("table.sortable")) sads.startSorting(table);
  const below = (control) => (control.closest("details") ?? section).querySelector("table");
  for (const input of section.querySelectorAll("[data-rows]")) {
    input.addEventListener("input", () => {
      for (const row of below(input).tBodies[0].rows) row.hidden = !sads.matches(row, input.value);
    });
  }
  for (const button of section.querySelectorAll("[data-table-csv]")) {
    button.addEventListener("click", () => {
      sads.save(`${button.dataset.tableCsv}.csv`, sads.csv(sads.tableColumns(below(button))));
    });
  }
};

sads.parts.ranking = sads.startTables;

sads.parts.paper = (section) => {
  sads.startTables(section);

  const claims = section.querySelector("table.claims");
  const boxes = [...section.querySelectorAll("input[data-verdict]")];
  const figure = section.querySelector("select[data-figure]");
  const find = section.querySelector("[data-find]");
  const filter = () => {
    const verdicts = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
    const rows = [...claims.tBodies[0].rows];
    for (const row of rows) {
      const wanted = !figure.value || row.dataset.figure === figure.value;
      row.hidden = !(wanted && verdicts.has(row.dataset.verdict) && sads.matches(row, find.value));
    }
    const shown = rows.filter((row) => !row.hidden).length;
    section.querySelector("[data-count]").textContent = `${shown} of ${rows.length} claims`;
  };
  for (const control of [...boxes, figure, find]) control.addEventListener("input", filter);
  filter();
  section.querySelector("[data-claims-csv]").addEventListener("click", () => {
    sads.save("claims.csv", sads.csv(sads.tableColumns(claims)));
  });
};
