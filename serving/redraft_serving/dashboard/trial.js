// A canary or a watch: both arms, the bounds of their differences, and the verdict's own sentence.

import { byId, el, fill, table } from "./dom.js";
import { count, duration, milliseconds, percent, points, signed, version } from "./format.js";
import { intervalPicture } from "./rounds.js";

const TITLE = { canary: "Canary", watch: "Watch after the promotion" };

export function showTrial(view) {
  const trial = view.detail?.trial ?? null;
  byId("trial").hidden = !trial;
  if (!trial) return;
  const share = trial.share === null ? "" : ` serves ${percent(trial.share, 0)} of the requests`;
  const other = trial.kind === "canary" ? version(trial.version) : version(trial.against);
  fill(byId("trial-title"), `${TITLE[trial.kind] ?? trial.kind}: ${version(trial.version)} against ${version(trial.against)}`,
    el("span", { class: "muted" }, share ? ` \u00b7 ${other}${share}` : ""));
  const columns = [["Arm"], ["Requests", "right"], ["Tested tokens", "right mid"], ["Acceptance", "right"], ["Time per token", "right"]];
  const rows = Object.entries(trial.arms).map(([name, arm]) => [
    [name, " ", el("span", { class: "tag" }, version(arm.version))],
    el("span", { "data-arm": name, "data-value": arm.requests }, count(arm.requests)), count(arm.tested),
    percent(arm.acceptance_rate) ?? "no data yet", milliseconds(arm.seconds_per_token) ?? "no data yet"]);
  fill(byId("trial-body"), el("div", { class: "narrow" }, table("Both arms of the trial", columns, rows)), bounds(trial),
    el("p", { class: "sentence" }, trial.sentence ?? "Not compared yet: each arm needs more finished requests."),
    el("p", { class: "muted small" }, progress(trial, view.now)));
}

function bounds(trial) {
  const lines = [];
  const limits = trial.limits;
  if (trial.acceptance_difference) {
    const { estimate, low, high } = trial.acceptance_difference;
    const limit = limits.acceptance_difference;
    lines.push(el("span", null, "Acceptance, difference"), drawn(trial.acceptance_difference, limit, 1),
      el("span", { class: "num" }, `${points(estimate)} points (${points(low)} to ${points(high)}), may lose ${(Math.abs(limit) * 100).toFixed(1)}`));
  }
  if (trial.slowdown) {
    const { estimate, low, high } = trial.slowdown;
    const part = (value) => `${signed(value * 100)}\u202f%`;
    lines.push(el("span", null, "Time per token, change"), drawn(trial.slowdown, limits.slowdown, -1),
      el("span", { class: "num" }, `${part(estimate)} (${part(low)} to ${part(high)}), may add ${percent(limits.slowdown, 0)}`));
  }
  return lines.length ? el("div", { class: "bounds" }, lines) : null;
}

// Wide bounds at the beginning would squeeze the limit into the middle: at most three limits to each side.
function drawn({ estimate, low, high }, limit, better) {
  const room = 3 * Math.abs(limit);
  const ends = [Math.max(-room, Math.min(low, -Math.abs(limit))), Math.min(room, Math.max(high, Math.abs(limit)))];
  return intervalPicture(Math.min(Math.max(estimate, ends[0]), ends[1]), low, high, ends, [limit], better);
}

function progress(trial, now) {
  const ran = trial.started_ms ? `running for ${duration((now - trial.started_ms) / 1000)}` : "";
  return ran;
}
