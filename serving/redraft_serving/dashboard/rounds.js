// The last training rounds: decision, gain and its interval, and what became of each version.

import { byId, el, fill, svg, table } from "./dom.js";
import { count, moment, percent, points, version } from "./format.js";

const TONE = { promoted: "ok", approved: "ok", rejected: "", pending: "warn" };

export function showRounds(view, promote) {
  const { detail, row, now, mayAct } = view;
  const rounds = detail?.rounds ?? [];
  if (!rounds.length) {
    fill(byId("rounds"), el("p", { class: "note" }, "No data yet: a round runs when the schedule asks for one, or when you say so."));
    return;
  }
  const scale = extent(rounds);
  const columns = [["Version"], ["Decision"], ["Measured acceptance", "wide"], ["Gain, points", ""], ["Held out", "right wide"]];
  fill(byId("rounds"), table("Last training rounds, newest first", columns, rounds.map((round) => [
    [version(round.version), ...aliases(round, row), el("span", { class: "small muted" }, moment(round.created_ms, now))],
    decision(round, row, now, mayAct ? promote : null),
    acceptance(round),
    gain(round, scale),
    round.heldout_tokens === null ? "" : [el("span", { class: "nowrap" }, `${count(round.heldout_requests)} requests`), el("span", { class: "small muted" }, `${count(round.heldout_tokens)} tokens`)],
  ])));
}

function aliases(round, row) {
  return ["champion", "challenger", "previous"].filter((name) => row[name] === round.version)
    .flatMap((name) => [" ", el("span", { class: name === "champion" ? "tag ok" : "tag" }, name)]);
}

// What came of a round so far: one that won its comparison is not champion while its canary runs.
export function outcome(round) {
  if (round.decision === "promoted" && round.canary.canary === "running") return "approved";
  return round.decision ?? "pending";
}

function decision(round, row, now, promote) {
  const word = outcome(round);
  const parts = [el("span", { class: TONE[word] ?? "" }, word)];
  if (round.canary.canary) parts.push(" ", el("span", { class: "tag" }, `canary ${round.canary.canary}`));
  if (round.reason) parts.push(el("span", { class: "small muted reason" }, round.reason));
  const events = [];
  if (round.promoted_ms) events.push("Champion from ", moment(round.promoted_ms, now), ".");
  if (round.rolled_back_ms) events.push(" Left at ", moment(round.rolled_back_ms, now), `: ${round.rollback_reason ?? "no reason given"}.`);
  if (events.length) parts.push(el("span", { class: round.rolled_back_ms ? "small warn reason" : "small muted reason" }, events));
  if (promote && round.version !== row.champion && word !== "pending") {
    parts.push(el("button", { type: "button", id: `promote-${round.version}`, onclick: () => promote(round.version) }, `Promote ${version(round.version)}\u2026`));
  }
  return parts;
}

function acceptance(round) {
  if (round.acceptance_rate === null) return "";
  const before = round.champion_acceptance_rate === null ? "" : `${percent(round.champion_acceptance_rate)} \u2192 `;
  return el("span", { class: "nowrap" }, before, percent(round.acceptance_rate));
}

function gain(round, scale) {
  if (round.gain === null) return el("span", { class: "none" }, "not measured");
  const known = round.gain_ci_low !== null && round.gain_ci_high !== null;
  const words = known ? `${points(round.gain_ci_low)} to ${points(round.gain_ci_high)}` : "no interval";
  return [el("span", { class: "nowrap", "data-gain": round.gain, "data-version": round.version }, points(round.gain, 2)),
    el("span", { class: "small muted nowrap" }, words),
    known ? intervalPicture(round.gain, round.gain_ci_low, round.gain_ci_high, scale, []) : null];
}

// One scale for all rows, zero within it.
function extent(rounds) {
  const ends = rounds.flatMap((round) => [round.gain, round.gain_ci_low, round.gain_ci_high]).filter((end) => end !== null);
  return [Math.min(0, ...ends), Math.max(0, ...ends)];
}

// Estimate and interval over a zero line, with limits as dashed lines. The words beside it say the same.
export function intervalPicture(estimate, low, high, [least, most], limits, better = 1) {
  const slack = (most - least || 1) * 0.06;
  const at = (value) => `${(100 * (value - least + slack)) / (most - least + 2 * slack || 1)}%`;
  const upright = (value, kind) => svg("line", { x1: at(value), x2: at(value), y1: 0, y2: 14, class: kind });
  const tone = (better > 0 ? low > 0 : high < 0) ? " ok" : (better > 0 ? high < 0 : low > 0) ? " bad" : "";
  return svg("svg", { class: "interval", "aria-hidden": "true" },
    upright(0, "zero"), limits.map((limit) => upright(limit, "limit")),
    svg("line", { x1: at(Math.max(low, least)), x2: at(Math.min(high, most)), y1: 7, y2: 7, class: `range${tone}` }),
    svg("circle", { cx: at(estimate), cy: 7, r: 2.5 }));
}
