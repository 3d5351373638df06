// Rows of a topic as a table: where each row comes from, then its own columns. The newest row is the first.

import { h } from "./dom.js";
import { watch } from "./watch.js";

const OWN = ["_origin", "_sequence", "_published_at"];
const TITLES = { _origin: "origin", _sequence: "sequence", _published_at: "published" };

export function rowTable(caption, columns) {
  const head = h("tr");
  const body = h("tbody");
  const shown = [];
  const element = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption), h("thead", {}, head), body));

  function add(name) {
    shown.push(name);
    head.append(h("th", { scope: "col" }, name));
    for (const line of body.children) line.append(h("td"));
  }

  for (const name of OWN) {
    shown.push(name);
    head.append(h("th", { scope: "col" }, TITLES[name]));
  }
  columns.forEach(add);

  return {
    element,
    /** Puts a row first. Beyond `most` rows the last is dropped. */
    put(row, most) {
      for (const name of Object.keys(row)) if (!name.startsWith("_") && !shown.includes(name)) add(name);
      shown.forEach((name, at) => { if (typeof row[name] === "number") head.children[at].className = "number"; });
      body.prepend(h("tr", { "data-sequence": row._sequence }, shown.map((name) => h("td", { class: typeof row[name] === "number" ? "number" : null }, cell(name, row[name])))));
      while (body.children.length > most) body.lastChild.remove();
    },
    clear: () => body.replaceChildren(),
  };
}

function cell(name, value) {
  if (value === null || value === undefined) return h("span", { class: "muted" }, "null");
  if (name === "_origin") return watch.name(value);
  if (name === "_published_at") return String(value).slice(11, 23);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
