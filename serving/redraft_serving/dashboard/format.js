// Numbers, times and versions in words, each with its unit. null means: not known.

import { el } from "./dom.js";

export const MINUS = "\u2212";
const THIN = "\u202f";

export const count = (n) => (n === null || n === undefined ? "unknown"
  : Math.round(n).toString().replace(/\B(?=(\d{3})+$)/g, THIN));
export const percent = (rate, digits = 1) => (rate === null || rate === undefined ? null
  : `${(rate * 100).toFixed(digits)}${THIN}%`);
export const signed = (value, digits = 1) => {
  const text = Math.abs(value).toFixed(digits);
  return Number(text) === 0 ? text : (value < 0 ? MINUS : "+") + text;
};
export const points = (rate, digits = 1) => (rate === null || rate === undefined ? null : signed(rate * 100, digits));
export const times = (gain) => (gain === null || gain === undefined ? null : `${gain.toFixed(2)}\u00d7`);

export function milliseconds(seconds) {
  if (seconds === null || seconds === undefined) return null;
  const ms = seconds * 1000;
  return `${ms.toFixed(ms < 10 ? 2 : ms < 100 ? 1 : 0)}${THIN}ms`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "unknown";
  const steps = [[86400, "d"], [3600, "h"], [60, "min"]];
  for (const [size, unit] of steps) {
    if (seconds >= 2 * size) return `${Math.round(seconds / size)}${THIN}${unit}`;
  }
  return `${Math.round(seconds)}${THIN}s`;
}

export const version = (v) => (v === null || v === undefined ? "unknown" : v === "base" ? "base" : `v${v}`);

const two = (n) => String(n).padStart(2, "0");
export const clock = (date, seconds = false) =>
  `${two(date.getHours())}:${two(date.getMinutes())}${seconds ? `:${two(date.getSeconds())}` : ""}`;

// Local time, the day where it isn't today, and UTC on hover.
export function moment(ms, nowMs) {
  if (ms === null || ms === undefined) return el("span", { class: "none" }, "unknown");
  const date = new Date(ms);
  const today = date.toDateString() === new Date(nowMs).toDateString();
  const day = today ? "" : `${date.toLocaleDateString(undefined, { month: "short", day: "numeric" })} `;
  const utc = `${date.toISOString().slice(0, 19).replace("T", " ")} UTC`;
  return el("time", { datetime: date.toISOString(), title: utc, class: "nowrap" }, day + clock(date));
}

export function ago(ms, nowMs) {
  const date = new Date(ms);
  return el("time", { datetime: date.toISOString(), title: `${date.toISOString().slice(0, 19).replace("T", " ")} UTC` },
    `${duration(Math.max(0, (nowMs - ms) / 1000))} ago`);
}
