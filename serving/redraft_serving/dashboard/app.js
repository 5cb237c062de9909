// Asks /v1/overview every few seconds while the page is seen, and shows what it says.

import { promote, showActions, wireConfirm } from "./actions.js";
import { ask, Refused, storedKey, storeKey, Unauthorized, Unreachable } from "./api.js";
import { redraw, showHistory, watchSize } from "./charts.js";
import { byId, el, fill } from "./dom.js";
import { clock, duration, moment, version } from "./format.js";
import { showDomains, showNow, showSamples } from "./now.js";
import { showRounds } from "./rounds.js";
import { showTrial } from "./trial.js";
import { showWorkers } from "./workers.js";

const PERIOD_MS = 5000;
const NAMES = { redis: "Redis", registry: "MLflow" };

let domain = new URLSearchParams(location.search).get("domain");
let timer = null;
let asked = 0;
let before = null;

async function refresh() {
  clearTimeout(timer);
  const turn = ++asked;
  try {
    const query = domain ? `?domain=${encodeURIComponent(domain)}` : "";
    const found = await ask(`v1/overview${query}`);
    if (turn !== asked) return;
    failed(null);
    show(found);
  } catch (error) {
    if (turn !== asked) return;
    if (error instanceof Refused && domain) { choose(null); return; }
    failed(error);
    if (error instanceof Unauthorized) { askForKey(storedKey() ? "The worker refuses this key." : "This worker asks for a key."); return; }
  }
  timer = setTimeout(refresh, document.hidden ? 12 * PERIOD_MS : PERIOD_MS);
}

function show(found) {
  const detail = found.detail;
  const name = detail?.domain ?? found.domains[0]?.domain;
  const view = {
    domain: name, detail, now: found.now_ms, mayAct: found.may_act, sources: found.sources, workers: found.workers,
    samples: found.samples, drafts: found.drafts, rows: found.domains, refresh,
    card: found.drafts.find((draft) => draft.domain === name), row: found.domains.find((row) => row.domain === name),
  };
  byId("main").hidden = false;
  byId("model").textContent = found.model;
  byId("refreshed").textContent = `updated ${clock(new Date(), true)}`;
  byId("refreshed").title = "every 5 seconds";
  byId("key-button").textContent = !storedKey() ? "Key\u2026" : found.may_act ? "Key: may act" : "Key: may read";
  fill(byId("since"), "This worker looks since ", moment(found.started_ms, found.now_ms),
    `; ${found.running} choices run, ${found.waiting} wait.`);
  choices(found.domains.map((row) => row.domain), name);
  showSources(found.sources);
  showNow(view);
  showHistory(detail?.history ?? null, found.now_ms);
  showTrial(view);
  showSamples(view);
  showActions(view);
  showRounds(view, (number) => promote(view, number));
  showWorkers(view);
  showDomains(view, choose);
  announce(view);
}

// A server that is away: what it said last is shown, with its age.
function showSources(sources) {
  const away = Object.entries(sources).filter(([, source]) => source.up === false);
  fill(byId("sources"), away.map(([name, source]) => el("p", null, source.stale_seconds === null
    ? `${NAMES[name]} does not answer: what it knows is missing here. Serving goes on.`
    : `${NAMES[name]} does not answer: its numbers are ${duration(source.stale_seconds)} old. Serving goes on.`)));
}

function choices(names, name) {
  byId("domain-choice").hidden = names.length < 2;
  const select = byId("domain");
  if (select.dataset.names !== names.join(" ")) {
    select.dataset.names = names.join(" ");
    select.replaceChildren(...names.map((one) => el("option", { value: one }, one)));
  }
  select.value = name;
  document.title = `${name} \u00b7 redraft`;
}

function choose(name) {
  domain = name;
  history.replaceState(null, "", name ? `?domain=${encodeURIComponent(name)}` : location.pathname);
  before = null;
  byId("answer").hidden = true;
  redraw();
  refresh();
}

// For screen readers: only what changed, and not every few seconds.
function announce({ card }) {
  const said = `${card.domain} is served by ${version(card.version)}, speculation ${card.state}.`;
  if (before !== null && said !== before) byId("announce").textContent = said;
  before = said;
}

function failed(error) {
  byId("banner").hidden = error === null;
  document.body.classList.toggle("stale", error !== null);
  if (error === null) return;
  byId("banner").textContent = error instanceof Unauthorized ? "This worker shows its numbers to those who have a key."
    : error instanceof Unreachable
    ? `The worker can\u2019t be reached; trying again every ${PERIOD_MS / 1000} seconds. What is shown below is old.`
    : error.message;
  byId("refreshed").textContent = "not updated";
}

function askForKey(why) {
  byId("key-why").textContent = why;
  byId("key-forget").hidden = !storedKey();
  if (!byId("key-dialog").open) byId("key-dialog").showModal();
  byId("key-input").focus();
}

function useKey(key) {
  storeKey(key);
  byId("key-input").value = "";
  byId("key-dialog").close();
  refresh();
}

byId("key-button").addEventListener("click", () => askForKey("With the admin key, this page can promote, roll back and train."));
byId("key-forget").addEventListener("click", () => useKey(null));
byId("key-form").addEventListener("submit", (event) => { event.preventDefault(); useKey(byId("key-input").value.trim()); });
byId("domain").addEventListener("change", (event) => choose(event.target.value));
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
wireConfirm();
watchSize();
refresh();
