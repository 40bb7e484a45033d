"use strict";
// The heat map of delta over the batch, and the worst tokens in context.

// The abs(delta) that has the full colour: the 99 % quantile, or the maximum if that quantile is 0.
function fullColour() {
  const {total, map} = attribution;
  if (total.tail_threshold > 0) return total.tail_threshold;
  return map.rows.reduce((most, row) => row.delta.reduce((of, delta) => (isNumber(delta) ? Math.max(of, Math.abs(delta)) : of), most), 0);
}

// The parts that the colours of the map or a column of the table can show besides delta.
function shownParts(full) {
  const {map} = attribution;
  return map.parts.filter((name) => map.rows.some((row) => row.parts[name].some((value) => isNumber(value) && Math.abs(value) >= full / 100)));
}

const tokenText = (row, t) => attribution.map.texts[row.tokens[t]];

// Everything about one token, one line each.
function cellText(row, t) {
  const lines = [`completion ${row.completion} (group ${plain(row.group)}, ${plain(row.index)}), token ${t}: ${JSON.stringify(tokenText(row, t))}`,
    `delta ${number(row.delta[t], 4)}   server's log-prob ${number(row.behaviour[t], 4)}   weight version ${plain(row.versions[t])}`,
    attribution.map.parts.map((name) => `${name} ${number(row.parts[name][t], 3)}`).join("   ")];
  if (row.masked) lines.push("not trained");
  return lines.filter(Boolean).join("\n");
}

const mapOrders = [["in order", () => 0], ["largest mean |delta| first", (a, b) => meanAbs(b) - meanAbs(a)], ["longest first", (a, b) => b.tokens.length - a.tokens.length]];
function meanAbs(row) {
  const known = row.delta.filter(isNumber);
  return known.length ? known.reduce((sum, value) => sum + Math.abs(value), 0) / known.length : 0;
}

// The canvas and its input: pointer, touch and arrow keys.
class HeatMap {
  constructor(full) {
    this.full = full;
    this.shown = "delta";
    this.order = 0;
    this.at = null;  // [row, token]
    this.canvas = el("canvas", {tabindex: "0", role: "img", "aria-label": "delta of every token: a row per completion, a column per position; arrow keys move, the token is described below"});
    this.cell = el("p", {class: "map-cell", "aria-live": "polite"}, "Point at a cell, tap it, or use the arrow keys.");
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerdown", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", hideTip);
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  values(row) { return this.shown === "delta" ? row.delta : row.parts[this.shown]; }

  // Draws all cells into a separate image, because a batch has tens of thousands and the pointer moves often.
  draw() {
    const {map} = attribution;
    this.rows = [...map.rows].sort(mapOrders[this.order][1]);
    const available = this.canvas.parentElement ? this.canvas.parentElement.clientWidth : 600;
    this.wide = Math.max(4, Math.min(48, Math.floor(available / Math.max(1, map.columns))));
    this.high = this.rows.length > 120 ? 5 : this.rows.length > 48 ? 8 : 14;
    const width = this.wide * map.columns, height = this.high * this.rows.length;
    this.scale = Math.min(window.devicePixelRatio || 1, 16000 / Math.max(width, height, 1));  // canvases have a largest size
    this.picture = document.createElement("canvas");
    for (const canvas of [this.canvas, this.picture]) {
      canvas.width = width * this.scale;
      canvas.height = height * this.scale;
    }
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.paint(this.picture.getContext("2d"));
    this.show();
  }

  paint(ink) {
    ink.scale(this.scale, this.scale);
    const absent = cssVariable("--code"), line = cssVariable("--muted"), tints = deltaTints();
    const gap = this.wide > 5 && this.high > 5 ? 1 : 0;
    this.rows.forEach((row, y) => this.values(row).forEach((value, x) => {
      ink.fillStyle = isNumber(value) ? shade(value, this.full, tints) : absent;
      ink.fillRect(x * this.wide, y * this.high, this.wide - gap, this.high - gap);
      if (!isNumber(value) || row.masked) this.strike(ink, line, x, y);
    }));
  }

  // A token that was not scored or not trained has a line through its cell.
  strike(ink, line, x, y) {
    ink.strokeStyle = line;
    ink.lineWidth = .5;
    ink.beginPath();
    ink.moveTo(x * this.wide, (y + 1) * this.high - 1);
    ink.lineTo((x + 1) * this.wide - 1, y * this.high);
    ink.stroke();
  }

  // The image, with a frame around the selected cell.
  show() {
    const ink = this.canvas.getContext("2d");
    ink.setTransform(1, 0, 0, 1, 0, 0);
    ink.clearRect(0, 0, this.canvas.width, this.canvas.height);
    ink.drawImage(this.picture, 0, 0);
    if (!this.at) return;
    ink.scale(this.scale, this.scale);
    ink.strokeStyle = cssVariable("--text");
    ink.lineWidth = 1.5;
    ink.strokeRect(this.at[1] * this.wide, this.at[0] * this.high, this.wide - 1, this.high - 1);
  }

  select(y, x) {
    const row = this.rows[y];
    if (!row || x < 0 || x >= row.tokens.length) return false;
    this.at = [y, x];
    this.show();
    this.cell.textContent = cellText(row, x);
    return true;
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = Math.floor((event.clientX - box.left) / this.wide), y = Math.floor((event.clientY - box.top) / this.high);
    if (this.at && this.at[0] === y && this.at[1] === x && tip.style.display === "block") return;
    if (!this.select(y, x)) return hideTip();
    placeTip(this.cell.textContent, {left: event.clientX, bottom: box.top + (y + 1) * this.high});
  }

  key(event) {
    const [dy, dx] = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key] || [0, 0];
    if (!dy && !dx) return;
    event.preventDefault();
    const [y, x] = this.at || [0, 0];
    if (!this.at) return void this.select(0, 0);
    const row = this.rows[Math.max(0, Math.min(this.rows.length - 1, y + dy))];
    this.select(this.rows.indexOf(row), Math.max(0, Math.min(row.tokens.length - 1, x + dx)));
  }
}

// A row of buttons of which one is pressed.
function choice(names, choose) {
  const buttons = names.map((name, i) => el("button", {type: "button", "aria-pressed": String(i === 0)}, name));
  buttons.forEach((button, i) => button.addEventListener("click", () => {
    buttons.forEach((other, j) => other.setAttribute("aria-pressed", String(i === j)));
    choose(i);
  }));
  return el("div", {class: "tabs"}, buttons);
}

function mapSection() {
  const {map, num_completions} = attribution;
  if (!map.rows.length) return null;
  const full = fullColour();
  const heat = new HeatMap(full);
  const names = ["delta", ...shownParts(full)];
  const parts = choice(names, (i) => { heat.shown = names[i]; heat.draw(); });
  const orders = choice(mapOrders.map(([name]) => name), (i) => { heat.order = i; heat.at = null; heat.draw(); });
  repaints.push(() => heat.draw());
  window.addEventListener("resize", () => heat.draw());
  const left = [map.every > 1 ? `${map.rows.length} of ${num_completions} completions (every ${map.every}.) are shown.` : null,
    map.cut_tokens > 0 ? `${map.cut_tokens} tokens behind position ${map.columns - 1} are cut.` : null].filter(Boolean).join(" ");
  return section("map", "The batch, token by token", "A row per completion, a column per position. Stripes down: positions. Whole rows: a completion, its prompt or its cache. A step along a row: a version boundary. Struck through: not trained, or not scored.",
    el("div", {class: "card"}, parts, orders,
      el("div", {class: "scale"}, `trainer finds it less likely (\u2264 -${number(full)})`, el("i", {"aria-hidden": "true"}), `more likely (\u2265 ${number(full)} nats)`, el("span", {}, "colours go with the square root, and are the same for delta and for every part")),
      el("div", {class: "map"}, heat.canvas), heat.cell, left ? el("p", {class: "note"}, left) : null));
}

function worstSection() {
  const {worst} = attribution;
  if (!worst.length) return null;
  const full = fullColour();
  return section("worst", "Worst tokens", "The tokens with the largest |delta|, in context, with the parts that made them.", el("div", {class: "card"}, table([
    {name: "delta", num: true, cell: (r) => number(r.delta)}, {name: "token in context", cell: (r) => contextNode(visible(r.before), r.token, visible(r.after), r.delta, full)},
    {name: "server's probability", num: true, cell: (r) => number(Math.exp(r.behaviour))}, {name: "trainer's", num: true, cell: (r) => number(Math.exp(r.proximal))},
    ...shownParts(full).map((name) => ({name, num: true, cell: (r) => number(r.parts[name], 2)})),
    {name: "completion", num: true, cell: (r) => plain(r.completion)}, {name: "position", num: true, cell: (r) => plain(r.position)}, {name: "version", num: true, cell: (r) => plain(r.version)}], worst, true)));
}
