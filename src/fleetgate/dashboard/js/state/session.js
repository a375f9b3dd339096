// The tab's half of the session: a secret that goes along with every request. The other half is a cookie that no script
// can read. Cookies know no port, so other web servers on this machine see them; they never see this secret.
// A new tab asks the open tabs of the same origin for it.

const NAME = "fleetgate.session";
const HEADER = "x-fleetgate-session";
const ANSWER_MS = 150;

let secret = stored();
const refused = new Set(); // secrets that the service did not take: other tabs may still offer them
const listeners = [];
const channel = typeof BroadcastChannel === "function" ? new BroadcastChannel(NAME) : null;

channel?.addEventListener("message", ({ data }) => {
  if (data?.ask && secret) channel.postMessage({ secret });
  else if (data?.ended && data.ended === secret) keep("");
  else if (typeof data?.secret === "string" && data.secret !== secret && !refused.has(data.secret)) keep(data.secret);
});

/** Whether this tab has a secret; if it is good, the service knows. */
export const hasSecret = () => secret !== "";

/** What every request carries. @returns {Record<string, string>} */
export const sessionHeaders = () => (secret ? { [HEADER]: secret } : {});

/** Call a function when the secret changes. @param {() => void} call */
export const onSession = (call) => listeners.push(call);

/** A new session: for this tab and all others. @param {string} value */
export function begin(value) {
  keep(value);
  channel?.postMessage({ secret: value });
}

/** It ended here: in all tabs. */
export function end() {
  if (!secret) return;
  channel?.postMessage({ ended: secret });
  keep("");
}

/** The service did not take the headers of a request: another tab may know a newer secret. */
export function refuse(headers) {
  if (!secret || headers[HEADER] !== secret) return; // or there is a newer one by now
  refused.add(secret);
  keep("");
  channel?.postMessage({ ask: true });
}

/** Ask the other tabs, and give them a moment to answer. @returns {Promise<void>} */
export function ask() {
  if (secret || !channel) return Promise.resolve();
  return new Promise((resolve) => {
    listeners.push(resolve);
    setTimeout(resolve, ANSWER_MS);
    channel.postMessage({ ask: true });
  });
}

function keep(value) {
  secret = value;
  try {
    if (value) sessionStorage.setItem(NAME, value);
    else sessionStorage.removeItem(NAME);
  } catch {
    // No storage: it lasts until the page is loaded again.
  }
  for (const call of listeners) call();
}

function stored() {
  try {
    return sessionStorage.getItem(NAME) ?? "";
  } catch {
    return "";
  }
}
