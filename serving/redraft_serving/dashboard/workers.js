// Every process of the deployment, when it was heard of, and what it serves.

import { byId, el, fill, table } from "./dom.js";
import { duration, moment, version } from "./format.js";

export function showWorkers(view) {
  const { workers, sources, domain, row, now } = view;
  if (workers === null) {
    fill(byId("workers"), el("p", { class: "note" }, "This key shows its domains, not the machines."));
    return;
  }
  if (!workers.length) {
    fill(byId("workers"), el("p", { class: "note" }, sources.redis.configured ? "No data yet: no worker has been heard of."
      : "Without Redis, workers cannot hear of each other."));
    return;
  }
  const columns = [["Worker"], ["Heard of"], [`Serves in ${domain}`], ["Started", "wide"]];
  const started = workers.some((worker) => worker.started_ms);
  if (!started) columns.pop();
  fill(byId("workers"), table("Workers", columns, workers.map((worker) => [
    [worker.role, el("span", { class: "small muted" }, `${worker.host}:${worker.pid}`)],
    worker.silent ? el("span", { class: "bad" }, `silent for ${duration(worker.age_seconds)}`) : `${duration(worker.age_seconds)} ago`,
    serves(worker, domain, row),
    worker.started_ms ? moment(worker.started_ms, now) : "",
  ].slice(0, columns.length))));
}

function serves(worker, domain, row) {
  if (worker.role !== "serving") return "";
  const serving = worker.drafts[domain] ?? "base";
  const parts = [el("span", { "data-serves": `${worker.host}:${worker.pid}`, "data-value": serving }, version(serving))];
  if (worker.challengers[domain]) parts.push(" ", el("span", { class: "tag" }, `canary ${version(worker.challengers[domain])}`));
  if (worker.behind.includes(domain)) parts.push(" ", el("span", { class: "tag bad" }, `lags: champion is ${version(row.champion)}`));
  const elsewhere = worker.behind.filter((name) => name !== domain);
  if (elsewhere.length) parts.push(el("span", { class: "small warn" }, `lags in ${elsewhere.join(", ")}`));
  return parts;
}
