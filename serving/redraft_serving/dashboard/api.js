// Asking the worker. The key lives in this tab's sessionStorage and goes nowhere else.

const KEY = "redraft-key";
const LIMIT_MS = 8000;

export const storedKey = () => sessionStorage.getItem(KEY);
export const storeKey = (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY));

export class Unauthorized extends Error {}
export class Refused extends Error {}
export class Unreachable extends Error {}

export async function ask(path, options = {}) {
  const headers = { ...(options.body ? { "Content-Type": "application/json" } : {}) };
  if (storedKey()) headers.Authorization = `Bearer ${storedKey()}`;
  let answer;
  try {
    const signal = AbortSignal.timeout(options.limitMs ?? LIMIT_MS);
    answer = await fetch(path, { method: options.method ?? "GET", body: options.body, headers, signal, cache: "no-store" });
  } catch {
    throw new Unreachable("The worker does not answer.");
  }
  const body = await answer.json().catch(() => null);
  const message = body?.error?.message ?? `The worker answered ${answer.status}.`;
  if (answer.status === 401) throw new Unauthorized(message);
  if (!answer.ok || body === null) throw new Refused(message);
  return body;
}
