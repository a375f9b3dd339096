// Asking the service. An answer that is an error is thrown as the service's own sentence.

const TIMEOUT_MS = 20_000;

export class Refused extends Error {
  /** @param {number} status  0: nobody answered */
  constructor(status, message, reason = "") {
    super(message);
    this.status = status;
    this.reason = reason;
  }
}

/** @returns {Promise<any>} */
export const get = (path) => ask("GET", path);

/** @returns {Promise<any>} */
export const send = (method, path, body) => ask(method, path, body);

async function ask(method, path, body) {
  const given = body === undefined ? {} : { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
  let answer;
  try {
    answer = await fetch(path, { method, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS), ...given });
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
