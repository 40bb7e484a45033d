"use strict";
// Values with their intervals as text and as rows of bars in HTML, so that they print, follow the
// theme and work with screen readers.

// An interval of the data: {value, low, high}, where null is unknown, or [value, low, high].
const interval = (of) => (Array.isArray(of) ? {value: of[0], low: of[1], high: of[2]} : of || {});
const isKnown = ({low, high}) => isNumber(low) && isNumber(high);

// "0.0143 [0.0122, 0.0166]"
function withBounds(of, format = number) {
  const {value, low, high} = interval(of);
  return isKnown({low, high}) ? `${format(value)} [${format(low)}, ${format(high)}]` : format(value);
}

// A share as percent; no "-0.0".
const percentNumber = (value) => (isNumber(value) ? (Math.abs(value) < 5e-4 ? 0 : 100 * value).toFixed(1) : "-");
const percentWithBounds = (of) => (isNumber(interval(of).value) ? `${percentNumber(interval(of).value)} %` + (isKnown(interval(of)) ? ` [${percentNumber(interval(of).low)}, ${percentNumber(interval(of).high)}]` : "") : "-");

// The positions of a row's bar and of its interval: from `start` over the value, or from `level` to it.
function barOver(of, start = 0) {
  const {value, low, high} = interval(of);
  return {from: start, to: start + value, low: start + low, high: start + high};
}
const barTo = (of, level = 0) => ({from: level, to: interval(of).value, low: interval(of).low, high: interval(of).high});

// rows: [{name, title, text, bar, strong, kind}]. All share one scale, which includes every bar, every interval, `level` and `reach`.
// `band`: [from, to], shaded behind every bar.
function intervalRows(rows, level = 0, {reach = level, band = []} = {}) {
  const places = [...rows.flatMap(({bar}) => [bar.from, bar.to, bar.low, bar.high]), reach, ...band].filter(isNumber);
  const least = Math.min(level, ...places), most = Math.max(level, ...places);
  const at = (place) => (most > least ? 100 * (place - least) / (most - least) : 0);
  const span = (kind, a, b) => el("i", {class: kind, style: `left:${Math.min(at(a), at(b)).toFixed(2)}%;width:${Math.abs(at(b) - at(a)).toFixed(2)}%`});
  return el("div", {class: "rows", role: "list"}, rows.map(({name, title, text, bar, strong, kind: of}) =>
    el("div", {class: "row" + (strong ? " strong" : "") + (of ? ` ${of}` : ""), role: "listitem", title: title || null}, el("span", {class: "row-name"}, name),
      el("span", {class: "track", "aria-hidden": "true"}, band.length ? span("band", ...band) : null, el("i", {class: "level", style: `left:${at(level).toFixed(2)}%`}),
        isNumber(bar.to) ? span(bar.to < bar.from ? "bar less" : "bar more", bar.from, bar.to) : null,
        isKnown(bar) ? span("whisker", bar.low, bar.high) : null),
      el("span", {class: "row-value"}, text))));
}
