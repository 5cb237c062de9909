// The figures on top, the samples below, and all domains in one table.

import { byId, el, figure, fill, table } from "./dom.js";
import { ago, count, milliseconds, moment, percent, times, version } from "./format.js";
import { outcome } from "./rounds.js";

const last = (values) => values?.findLast((value) => value !== null) ?? null;

export function showNow(view) {
  const { card, row, detail } = view;
  const rate = card.acceptance_rate;
  const perToken = last(detail?.history.seconds_per_token);
  const policy = card.policy;
  fill(byId("now"),
    figure("Draft", "version", version(card.version), card.version, served(view)),
    figure("Acceptance", "acceptance", percent(rate), rate, [
      el("span", { "data-figure": "accepted", "data-value": card.accepted }, count(card.accepted)), " of ",
      el("span", { "data-figure": "tested", "data-value": card.tested }, count(card.tested)),
      ` tested tokens, since ${version(card.version)} serves`]),
    figure("Time per token", "seconds-per-token", milliseconds(perToken), perToken,
      perToken ? `${(1 / perToken).toFixed(1)} tokens/s per choice, latest finished` : "of finished choices"),
    figure("Speculation", "k", depth(card), card.num_speculative_tokens, state(card)),
    figure("Measured gain", "gain", times(policy?.measured_gain ?? null), policy?.measured_gain, gain(policy)));
  fill(byId("reason"), policy ? `Policy: ${policy.reason}` : "");
}

function served({ row, detail, now }) {
  const promoted = detail?.rounds.find((round) => round.version === row.champion)?.promoted_ms;
  const words = [];
  if (row.draft_of !== row.domain) words.push(`of ${row.draft_of}, `);
  if (row.champion !== null) words.push(`champion ${version(row.champion)}`);
  if (promoted) words.push(" since ", moment(promoted, now));
  if (row.previous !== null && row.previous !== row.champion) words.push(`, before it ${version(row.previous)}`);
  return words;
}

// Off, on, or how many tokens a round proposes; the last round may have had room for none.
function depth(card) {
  const k = card.state === "fixed" ? card.policy?.setting ?? card.num_speculative_tokens : card.num_speculative_tokens;
  if (card.state === "off" || (card.state === "fixed" && !k)) return "off";
  return k ? `K = ${k}` : "on";
}

function state(card) {
  const setting = card.policy?.setting ?? (card.state === "fixed" ? card.num_speculative_tokens : "auto");
  const proposer = card.policy?.proposer;
  return `${card.state}${setting === "auto" ? ", chosen by measurement" : ""}${proposer ? `, ${proposer}` : ""}`;
}

function gain(policy) {
  if (!policy) return "speed over plain decoding";
  const modelled = policy.modelled_gain === null ? "" : `, modelled ${times(policy.modelled_gain)}`;
  const even = policy.break_even_acceptance === null ? "" : `, break-even at ${percent(policy.break_even_acceptance)}`;
  return `speed over plain decoding${modelled}${even}`;
}

export function showSamples(view) {
  const { row, samples, detail, now } = view;
  const stream = row.stream;
  const dropped = Object.entries(samples.dropped);
  const total = dropped.reduce((sum, [, n]) => sum + n, 0);
  const reasons = dropped.map(([reason, n]) => `${reason} ${count(n)}`).join(", ");
  const round = detail?.rounds[0];
  fill(byId("samples"),
    figure("In the stream", "stream-length", stream && count(stream.length), stream?.length, "samples"),
    figure("Unseen", "stream-unseen", stream && count(stream.unseen), stream?.unseen,
      stream ? `samples, ${count(stream.new_tokens)} tokens not trained on` : "samples not trained on"),
    figure("Lost", "stream-lost", stream && flagged(stream.lost), stream?.lost, "trimmed before a round saw them"),
    figure("Dropped", "dropped", flagged(total), total, reasons || "not kept by this worker"),
    figure("Last round", "last-round", round ? ago(round.created_ms, now) : null, round?.version, round ? `${version(round.version)}, ${outcome(round)}` : "no round yet"));
  fill(byId("schedule"), ...scheduled(detail?.schedule, now));
}

const flagged = (n) => (n ? el("span", { class: "bad" }, count(n)) : "0");

// Where the schedule stands, in a sentence or two.
function scheduled(schedule, now) {
  if (!schedule) return [];
  const every = /^[0-9]/.test(schedule.schedule) ? `every ${schedule.schedule}` : `by the crontab ${schedule.schedule}`;
  const words = [`A round is asked for ${every}, sooner for enough new tokens or falling acceptance.`];
  if (schedule.running) words.push(" One is running now.");
  else if (schedule.next_due_ms !== null) words.push(schedule.next_due_ms <= now ? " The next one is due." : [" Next about ", moment(schedule.next_due_ms, now), "."]);
  else words.push(" Beat has not looked at this domain yet.");
  if (schedule.headroom) words.push(` ${schedule.headroom[0].toUpperCase()}${schedule.headroom.slice(1)}.`);
  else if (schedule.last_end === "skipped" || schedule.last_end === "failed") words.push(` The last one was ${schedule.last_end}: ${(schedule.last_reason ?? "no reason given").replace(/\.?$/, ".")}`);
  return words.flat();
}

export function showDomains(view, choose) {
  const { drafts, rows, domain } = view;
  byId("domains-section").hidden = rows.length < 2;
  if (rows.length < 2) return;
  const columns = [["Domain"], ["Draft"], ["Acceptance", "right"], ["Speculation"], ["Unseen", "right mid"], ["Lost", "right mid"]];
  fill(byId("domains"), table("All domains", columns, rows.map((row) => {
    const card = drafts.find((draft) => draft.domain === row.domain);
    const name = row.domain === domain ? row.domain
      : el("button", { type: "button", class: "link", id: `see-${row.domain}`, onclick: () => choose(row.domain) }, row.domain);
    return [name, version(card?.version), percent(card?.acceptance_rate) ?? "no data yet",
      card ? depth(card) : "unknown",
      row.stream ? count(row.stream.unseen) : "unknown", row.stream ? flagged(row.stream.lost) : "unknown"];
  })));
}

