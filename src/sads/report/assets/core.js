"use strict";
// What all parts of a report share: its data, numbers as text, elements, files to save, the theme.
// Text from the data reaches the page through textContent only.

const sads = { parts: {} };

sads.data = JSON.parse(document.getElementById("data").textContent);

// As Python writes f"{x:.4g}".
sads.number = (x, digits = 4) => {
  if (x === null || x === undefined || Number.isNaN(x)) return "?";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "-∞";
  if (x === 0) return "0";
  const [mantissa, power] = x.toExponential(digits - 1).split("e");
  const exponent = Number(power);
  const short = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  if (exponent < -4 || exponent >= digits) {
    const size = String(Math.abs(exponent)).padStart(2, "0");
    return `${short(mantissa)}e${exponent < 0 ? "-" : "+"}${size}`;
  }
  return short(x.toFixed(Math.max(0, digits - 1 - exponent)));
};

// A number with its standard error; null is an error that nobody knows, 0 that of an exact number.
sads.estimate = (value, error) => {
  if (error === 0) return sads.number(value, 6);
  return `${sads.number(value)} ± ${error === null ? "?" : sads.number(error, 2)}`;
};

sads.percent = (x, digits = 1) => (x === null ? "?" : `${(100 * x).toFixed(digits)}%`);

// Numbers that were packed as base64 to keep the page small.
sads.unpack = ({ type, bytes }) => {
  const raw = Uint8Array.from(atob(bytes), (character) => character.charCodeAt(0));
  const kinds = { int8: Int8Array, int16: Int16Array, int32: Int32Array, float32: Float32Array };
  return new kinds[type](raw.buffer);
};

sads.element = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};

// Names and values as the terms of a list.
sads.terms = (list, entries) => {
  const rows = Object.entries(entries).filter(([, value]) => value !== null);
  list.replaceChildren(
    ...rows.flatMap(([name, value]) => [
      sads.element("dt", {}, name),
      sads.element("dd", {}, value),
    ]),
  );
};

// Columns {title: [values]} as a CSV file. A cell that a spreadsheet would run starts with '.
sads.csv = (columns) => {
  const titles = Object.keys(columns);
  const quote = (value) => {
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return String(value);
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const count = Math.max(0, ...titles.map((title) => columns[title].length));
  const rows = Array.from({ length: count }, (_, i) => titles.map((t) => quote(columns[t][i])));
  return [titles.map(quote), ...rows].map((row) => `${row.join(",")}\r\n`).join("");
};

sads.save = (name, text) => {
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  sads.element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
};

// A button of a figure that saves its numbers; `columns` is asked when it is pressed.
sads.offerCsv = (figure, columns) => {
  figure.querySelector("[data-csv]").addEventListener("click", () => {
    sads.save(`${figure.id}.csv`, sads.csv(columns()));
  });
};

sads.startTheme = () => {
  const choice = document.getElementById("theme");
  const keep = (action) => {
    try {
      return action(window.localStorage);
    } catch {
      return null; // a page from a file may have no storage
    }
  };
  const use = (theme) => {
    document.documentElement.dataset.theme = theme;
    choice.value = theme;
  };
  const known = [...choice.options].map((option) => option.value);
  const last = keep((storage) => storage.getItem("sads-theme"));
  use(known.includes(last) ? last : "auto");
  choice.addEventListener("change", () => {
    use(choice.value);
    keep((storage) => storage.setItem("sads-theme", choice.value));
  });
};

sads.startCopying = () => {
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      const code = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        window.getSelection().selectAllChildren(code); // then Ctrl-C does it
        button.textContent = "Selected";
      }
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
  }
};
