// Asking the service. An answer that is an error is thrown as the service's own sentence.
import { sessionHeaders } from "./session.js";

const TIMEOUT_MS = 20_000;

export class Refused extends Error {
  /** @param {number} status  0: nobody answered */
  constructor(status, message, reason = "") {
    super(message);
    this.status = status;
    this.reason = reason;
  }
}

/** @param {string} path @param {AbortSignal} [signal]  ends it early @returns {Promise<any>} */
export const get = (path, signal) => ask("GET", path, undefined, signal);

/** @returns {Promise<any>} */
export const send = (method, path, body) => ask(method, path, body);

async function ask(method, path, body, signal) {
  const headers = { ...sessionHeaders(), ...(body === undefined ? {} : { "Content-Type": "application/json" }) };
  const given = body === undefined ? { headers } : { headers, body: JSON.stringify(body) };
  const late = new AbortController();
  const end = () => late.abort();
  const timer = setTimeout(end, TIMEOUT_MS);
  signal?.addEventListener("abort", end);
  try {
    return await read(fetch(path, { method, cache: "no-store", signal: late.signal, ...given }));
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", end);
  }
}

/** @param {Promise<Response>} asked */
async function read(asked) {
  let answer;
  try {
    answer = await asked;
  } catch {
    throw new Refused(0, "the service does not answer");
  }
  let told = null;
  try {
    told = await answer.json();
  } catch {
    if (answer.ok) throw new Refused(0, "the service broke off its answer");
  }
  if (!answer.ok) throw new Refused(answer.status, told?.error ?? `the service answered ${answer.status}`, told?.reason);
  return told;
}
