// Elements, made from names, attributes and children. Every text becomes a text node: nothing is ever parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

export function h(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export function replace(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
}

/** A card with a heading of its own, and what is in it. */
export function card(title, attributes, ...children) {
  const id = `card-${title.toLowerCase().replaceAll(/\W+/g, "-")}`;
  return h("section", { ...attributes, class: `card ${attributes?.class ?? ""}`, "aria-labelledby": id }, h("h2", { id }, title), children);
}

/** One number with its title, and a sentence about it. */
export function tile(title, value, about, kind = "") {
  return h("div", { class: `tile ${kind}`, role: "group", "aria-label": title }, h("span", { class: "title" }, title), h("strong", {}, value), h("span", { class: "about" }, about));
}

/** A table with a caption for screen readers; wide ones scroll inside themselves. */
export function table(caption, columns, rows, empty) {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption),
      h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col", class: column.number ? "number" : null }, column.title)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, at) => h("td", { class: columns[at].number ? "number" : columns[at].code ? "code" : null }, cell)))))));
}

// ---- quantities

const SCALES = [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]];

export function amount(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  for (const [unit, size] of SCALES) if (Math.abs(value) >= size * 10 || (size < 1e4 && Math.abs(value) >= 1e4)) return `${three(value / size)} ${unit}`;
  return Number.isInteger(value) ? value.toLocaleString("en-US") : three(value);
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const at = value < 1024 ? 0 : Math.min(4, Math.floor(Math.log2(value) / 10));
  return `${three(value / 1024 ** at)} ${["B", "KiB", "MiB", "GiB", "TiB"][at]}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${three(value * 1000)} ms`;
  if (value < 120) return `${three(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${three(value / 3600)} h` : `${three(value / 86400)} d`;
}

function three(value) {
  const size = Math.abs(value);
  return size >= 100 || size === 0 ? Math.round(value).toString() : size >= 10 ? value.toFixed(1) : value.toFixed(2).replace(/\.?0+$/, "") || "0";
}

export function clock(time = new Date()) {
  return time.toLocaleTimeString("en-GB");
}
