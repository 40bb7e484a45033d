"use strict";
// Elements of a page. Text of the data, such as completions, is put into the document only through
// textContent, so that it is never parsed as markup.

const pageData = JSON.parse(document.getElementById("page-data").textContent);

// el("div", {class: "card"}, child, "text", [more]): null children are omitted.
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

// Up to `digits` significant digits, with separated thousands, and exponents where that is shorter.
function number(value, digits = 3) {
  if (!isNumber(value)) return "-";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e9) return value.toExponential(digits - 1).replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(digits)));
}

const percent = (value, digits = 1) => (isNumber(value) ? (100 * value).toFixed(digits) + " %" : "-");

function bytes(value) {
  if (!isNumber(value)) return "-";
  if (value >= 1e9) return number(value / 1e9) + " GB";
  if (value >= 1e6) return number(value / 1e6) + " MB";
  if (value >= 1e3) return number(value / 1e3) + " kB";
  return value + " B";
}

function duration(seconds) {
  if (!isNumber(seconds)) return "-";
  if (seconds < 60) return number(seconds) + " s";
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// A value of run.json or an event as plain text.
const plain = (value) =>
  value === null || value === undefined || value === "" ? "-" : typeof value === "object" ? JSON.stringify(value) : String(value);

function section(id, title, lead, ...children) {
  return el("section", {id}, el("h2", {}, title), lead ? el("p", {class: "lead"}, lead) : null, children);
}

function card(title, note, ...children) {
  return el("div", {class: "card"}, el("div", {class: "card-head"}, el("h3", {}, title)),
    note === null || note === undefined ? null : el("p", {class: "note"}, note), children);
}

// columns: [{name, num, tight, cell: row => Node or text}]
function table(columns, rows, limited) {
  const kind = (column) => [column.num ? "num" : "", column.tight ? "tight" : ""].join(" ").trim() || null;
  return el("div", {class: limited ? "scroll limit" : "scroll", tabindex: limited ? "0" : null}, el("table", {},
    el("thead", {}, el("tr", {}, columns.map((column) => el("th", {class: kind(column)}, column.name)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, columns.map((column) => el("td", {class: kind(column)}, column.cell(row))))))));
}

function tile(name, value, unit, note) {
  return el("div", {class: "tile"}, el("span", {class: "name"}, name),
    el("span", {class: "value"}, value, unit ? el("small", {}, " " + unit) : null), el("span", {class: "note"}, note || ""));
}

// [name, value]; entries without a value are omitted.
function facts(pairs) {
  return el("dl", {}, pairs.filter(([, value]) => value !== undefined && value !== null && value !== "")
    .map(([name, value]) => [el("dt", {}, name), el("dd", {}, value instanceof Node ? value : plain(value))]));
}
