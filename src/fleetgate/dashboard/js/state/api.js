// Requests to the service. An error is thrown with the sentence of the service.
import { sessionHeaders } from "./session.js";

const TIMEOUT_MS = 20_000;

export class Refused extends Error {
  /** @param {number} status  0: the service did not answer */
  constructor(status, message, reason = "") {
    super(message);
    this.status = status;
    this.reason = reason;
  }
}

/** @param {string} path @param {AbortSignal} [signal]  ends it early @returns {Promise<any>} */
export const get = (path, signal) => request("GET", path, undefined, signal);

/** @returns {Promise<any>} */
export const send = (method, path, body) => request(method, path, body);

async function request(method, path, body, signal) {
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

/** @param {Promise<Response>} sent */
async function read(sent) {
  let answer;
  try {
    answer = await sent;
  } catch {
    throw new Refused(0, "the service does not answer");
  }
  let content = null;
  try {
    content = await answer.json();
  } catch {
    if (answer.ok) throw new Refused(0, "the answer of the service broke off");
  }
  if (!answer.ok) throw new Refused(answer.status, content?.error ?? `the service answered ${answer.status}`, content?.reason);
  return content;
}
