// Promote, roll back and train now: asked for once more, done, and answered in words.

import { ask, Unauthorized } from "./api.js";
import { byId, el, fill } from "./dom.js";
import { version } from "./format.js";

const LIMIT_MS = 30000;

// Resolves to true where the operator confirms.
function confirmed(title, text, yes) {
  fill(byId("confirm-title"), title);
  fill(byId("confirm-text"), text);
  fill(byId("confirm-yes"), yes);
  const dialog = byId("confirm");
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}

export function wireConfirm() {
  byId("confirm-no").addEventListener("click", () => byId("confirm").close(""));
  byId("confirm-form").addEventListener("submit", (event) => { event.preventDefault(); byId("confirm").close("yes"); });
}

function say(text, tone) {
  byId("answer").hidden = false;
  byId("answer").className = `answer ${tone}`;
  byId("answer").textContent = text;
}

async function act(view, what, body, done) {
  const path = `v1/drafts/${encodeURIComponent(view.row.draft_of)}/${what}`;
  try {
    say("Asking\u2026", "muted");
    const answer = await ask(path, { method: "POST", body: JSON.stringify(body), limitMs: LIMIT_MS });
    say(done(answer), "ok");
  } catch (error) {
    const hint = error instanceof Unauthorized ? " Enter the admin key." : "";
    say(`Not done: ${error.message}${hint}`, "bad");
  }
  view.refresh();
}

const named = (number) => version(number ?? "base");
const moved = (answer) => `${answer.domain} went from ${named(answer.from)} to ${named(answer.to)}; every worker follows within seconds.`;

export async function promote(view, number) {
  const text = `${version(number)} becomes champion of ${view.row.draft_of}; every serving worker follows within seconds, and requests in flight go on. Now champion: ${version(view.row.champion)}.`;
  if (await confirmed(`Promote ${version(number)}?`, text, `Promote ${version(number)}`)) {
    await act(view, "promote", { version: number }, moved);
  }
}

async function rollback(view) {
  const back = view.row.previous;
  const text = `${view.row.draft_of} goes back from ${version(view.row.champion)} to ${back === null ? "the version before it" : version(back)}; the version left keeps the reason \u201crolled back by hand\u201d.`;
  if (await confirmed("Roll back?", text, "Roll back")) await act(view, "rollback", {}, moved);
}

async function train(view) {
  const text = `A training round for ${view.row.draft_of} begins as soon as a worker is free, whatever the schedule says. It is skipped where one runs already.`;
  if (await confirmed("Train now?", text, "Train now")) await act(view, "train", {}, (answer) => `Round ${answer.round_id} of ${answer.domain} was asked for.`);
}

export function showActions(view) {
  byId("domain-actions").hidden = !view.mayAct;
  if (!view.mayAct) return;
  const base = view.row.champion === "base" || view.row.champion === null;
  fill(byId("domain-actions"),
    el("button", { type: "button", id: "train", onclick: () => train(view) }, "Train now\u2026"),
    el("button", { type: "button", id: "rollback", disabled: base, onclick: () => rollback(view) }, base || view.row.previous === null ? "Roll back\u2026" : `Roll back to ${version(view.row.previous)}\u2026`));
}
