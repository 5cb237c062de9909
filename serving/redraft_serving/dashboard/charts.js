// Three panes on one time axis: acceptance, time per token, tokens proposed. A swap is a line through all three.

import { byId, el, fill } from "./dom.js";
import { clock, milliseconds, percent, version } from "./format.js";

const RANGES = [["15 min", 900], ["1 h", 3600], ["6 h", 21600], ["24 h", 86400], ["all", null]];
const LABEL_GAP = 26;
const Y_AXIS = 52;
const NARROW = 560;

// The key, its caption, its heights, how a value is written, and the least span of its axis.
const PANES = [
  { key: "acceptance_rate", kind: "rate", name: "Acceptance (accepted / tested)", height: 150,
    words: (v) => percent(v), tick: (v) => `${+(v * 100).toFixed(1)}\u202f%`, least: () => 0.1, most: 1 },
  { key: "seconds_per_token", kind: "time", name: "Time per token (lower is better)", height: 150,
    words: (v) => milliseconds(v), tick: (v) => `${+(v * 1000).toPrecision(3)}\u202fms`, least: (top) => top * 0.2, most: Infinity },
  { key: "proposed_per_round", kind: "k", name: "K, tokens proposed per round", height: 78,
    words: (v) => `K = ${+v.toFixed(1)}`, tick: (v) => String(v), least: () => 2, most: Infinity, stepped: true },
];

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const AT_MOST = 21600;

// What the reader chose; until then, the least range that holds the history.
let chosen;
let shown = null;
let plots = [];

function drawRanges() {
  fill(byId("ranges"), RANGES.map(([name, seconds]) => el("button", {
    type: "button", id: `range-${name.replace(" ", "-")}`, "aria-pressed": String(seconds === range()),
    onclick: () => { chosen = seconds; redraw(); },
  }, name)));
}

function range() {
  if (chosen !== undefined) return chosen;
  const first = shown?.history?.time_ms[0] ?? shown?.nowMs ?? 0;
  const age = ((shown?.nowMs ?? 0) - first) / 1000;
  return RANGES.map(([, seconds]) => seconds).find((seconds) => seconds >= Math.min(age, AT_MOST));
}

// `history` as in the overview's document; null clears the panes.
export function showHistory(history, nowMs) {
  shown = { history, nowMs };
  drawRanges();
  const empty = !history || !history.time_ms.length;
  const never = empty || !history.tested.at(-1) && !history.decoded_tokens.at(-1);
  byId("history-empty").hidden = !never;
  fill(byId("history-empty"), "No data yet: the curves begin with the first finished answers of this domain.");
  byId("panes").hidden = never;
  if (never) { fill(byId("marks"), ""); return; }
  if (plots.length) update(); else build();
  markWords();
}

export function redraw() {
  for (const plot of plots) plot.destroy();
  plots = [];
  if (shown) showHistory(shown.history, shown.nowMs);
}

const columns = () => {
  const { history } = shown;
  return PANES.map((pane) => [history.time_ms.map((ms) => ms / 1000), history[pane.key]]);
};

function span() {
  const end = shown.nowMs / 1000;
  const first = shown.history.time_ms[0] / 1000;
  return [range() === null ? Math.min(first, end - 60) : end - range(), end];
}

function build() {
  const places = PANES.map((pane) => {
    const plot = el("div", { class: "plot", role: "img", "aria-label": pane.name });
    const value = el("span", { class: "num", "data-readout": pane.key });
    return { plot, value, figure: el("figure", { class: `pane ${pane.kind}` },
      el("figcaption", null, el("span", { class: "name" }, pane.name), value), plot) };
  });
  byId("panes").replaceChildren(...places.map((place) => place.figure));
  const data = columns();
  plots = PANES.map((pane, at) => {
    const plot = new uPlot(options(pane, at, byId("panes").clientWidth), data[at], places[at].plot);
    return plot;
  });
  readout(null);
}

function update() {
  const data = columns();
  plots.forEach((plot, at) => plot.setData(data[at]));
  readout(null);
}

function options(pane, at, width) {
  const last = at === PANES.length - 1;
  const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false },
    font: "11px system-ui, sans-serif" };
  const line = pane.kind === "rate" ? "--rate" : pane.kind === "time" ? "--time" : "--muted";
  return {
    width, height: pane.height + (last ? 24 : 0), legend: { show: false }, padding: [at ? 6 : 18, 8, last ? 0 : 6, 0],
    cursor: { sync: { key: "redraft" }, y: false, drag: { x: false, y: false }, points: { size: 6 } },
    scales: { x: { time: true, range: () => span() }, y: { range: (_, low, high) => limits(pane, low, high) } },
    axes: [
      { ...axis, size: last ? 24 : 0, space: width < NARROW ? 60 : 80, values: (_, splits) => (last ? ticks(splits) : splits.map(() => null)) },
      { ...axis, size: Y_AXIS, space: pane.stepped ? 20 : 34, incrs: pane.stepped ? [1, 2, 5, 10] : undefined, values: (_, splits) => splits.map(pane.tick) },
    ],
    series: [{}, { stroke: color(line), width: 1.6, spanGaps: false, points: { size: 4 },
      paths: pane.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined }],
    hooks: { draw: [(plot) => drawMarks(plot, at === 0)], setCursor: [(plot) => readout(plot.cursor.idx)] },
  };
}

function limits(pane, low, high) {
  if (low === null || low === undefined) return pane.stepped ? [0, 4] : [0, pane.most === 1 ? 1 : 0.05];
  if (pane.stepped) return [0, Math.max(high + 1, 3)];
  const missing = Math.max(0, pane.least(high) - (high - low));
  const slack = (high - low) * 0.12 + missing / 2;
  return [Math.max(0, low - slack), Math.min(pane.most, high + slack)];
}

function ticks(splits) {
  const days = splits.length > 1 && splits[1] - splits[0] >= 43200;
  return splits.map((at) => {
    const date = new Date(at * 1000);
    const midnight = date.getHours() === 0 && date.getMinutes() === 0;
    return days || midnight ? date.toLocaleDateString(undefined, { month: "short", day: "numeric" }) : clock(date);
  });
}

// A swap: a line through the pane; its version stands above the first pane, where there is room.
function drawMarks(plot, named) {
  const { ctx, bbox } = plot;
  const scale = devicePixelRatio;
  let free = -Infinity;
  ctx.save();
  ctx.font = `${11 * scale}px system-ui, sans-serif`;
  ctx.fillStyle = ctx.strokeStyle = color("--muted");
  ctx.lineWidth = scale;
  for (const mark of shown.history.marks) {
    const x = Math.round(plot.valToPos(mark.time_ms / 1000, "x", true)) + scale / 2;
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.setLineDash([3 * scale, 3 * scale]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    if (named && x > free) {
      ctx.textAlign = x > bbox.left + bbox.width - LABEL_GAP * scale ? "right" : "center";
      ctx.fillText(version(mark.version), x, bbox.top - 5 * scale);
      free = x + LABEL_GAP * scale;
    }
  }
  ctx.restore();
}

// Beside each pane's name: the value under the pointer, else the newest one.
function readout(index) {
  const { history } = shown;
  const under = index !== null && index !== undefined;
  const at = under ? index : history.time_ms.length - 1;
  const moment = clock(new Date(history.time_ms[at]), true);
  for (const pane of PANES) {
    const node = byId("panes").querySelector(`[data-readout="${pane.key}"]`);
    const value = history[pane.key][at];
    const words = value === null || value === undefined ? "no traffic now" : pane.words(value);
    node.textContent = under ? `${moment} \u00b7 ${version(history.version[at])} \u00b7 ${words}` : value === null || value === undefined ? words : `now ${words}`;
  }
}

function markWords() {
  const marks = shown.history.marks.slice(-6).reverse();
  const words = marks.map((mark) => `${clock(new Date(mark.time_ms), true)} ${version(mark.before)} \u2192 ${version(mark.version)}`);
  fill(byId("marks"), words.length ? `Versions changed (dashed lines): ${words.join(", ")}.` : "No change of version since this worker began to look.");
  for (const pane of PANES) {
    const known = shown.history[pane.key].filter((value) => value !== null);
    const node = byId("panes").querySelector(`.${pane.kind} .plot`);
    const range = known.length ? `from ${pane.words(Math.min(...known))} to ${pane.words(Math.max(...known))}, now ${pane.words(known.at(-1))}` : "no data yet";
    node.setAttribute("aria-label", `${pane.name} over time: ${range}`);
  }
}

export function watchSize() {
  new ResizeObserver(() => {
    const width = byId("panes").clientWidth;
    plots.forEach((plot, at) => width && plot.setSize({ width, height: PANES[at].height + (at === PANES.length - 1 ? 24 : 0) }));
  }).observe(byId("panes"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}
