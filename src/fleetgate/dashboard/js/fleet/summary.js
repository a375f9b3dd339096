// The figures at the top, the state of the connection, and the name of the host.
import { now } from "../base/clock.js";
import { attr, byId, h, text } from "../base/dom.js";
import { count, duration } from "../base/format.js";
import { onChange, store } from "../state/store.js";

const figures = {};

export function setUpSummary() {
  for (const [name, title] of [["running", "Running"], ["waiting", "Waiting"], ["backoffs", "Backoffs"], ["limits", "Rate limits"]]) {
    const value = h("span", { class: "figure-value" });
    const note = h("span", { class: "figure-note" });
    const node = h("div", { class: "figure card", "data-figure": name }, h("dt", { text: title }), h("dd", {}, value, note));
    figures[name] = { node, value, note };
    byId("figures").append(node);
  }
  onChange(["pools", "backoffs", "leases", "running", "waiting", "queue", "series"], drawFigures);
  onChange(["connection", "session", "phase"], drawPlace);
}

function drawFigures() {
  const full = store.pools.filter((pool) => pool.limit !== null && pool.in_flight + pool.foreign >= pool.limit).length;
  const paused = store.pools.filter((pool) => pool.paused).length;
  const busy = [full ? `${full} full` : "", paused ? `${paused} paused` : ""].filter(Boolean).join(", ");
  put("running", store.running, busy ? `pools: ${busy}` : "no pool is full", "");
  const first = store.view.page === 0 && !store.view.query && !store.view.pool ? store.queue.tickets : [];
  const longest = Math.max(0, ...first.map((ticket) => now() - Date.parse(ticket.queued_at)));
  put("waiting", store.waiting, longest ? `longest ${duration(longest)}` : store.waiting ? "" : "none waiting", store.waiting ? "queue" : "");
  const auth = store.backoffs.filter((backoff) => backoff.reason === "auth" || backoff.reason === "quota").length;
  put("backoffs", store.backoffs.length, auth ? `${auth} ${auth === 1 ? "needs" : "need"} attention` : "models and accounts", auth ? "bad" : "");
  const hits = store.series.samples.reduce((sum, sample) => sum + sample.rate_limits, 0);
  const { minutes } = store.chart;
  put("limits", hits, `in the last ${minutes < 120 ? `${minutes} min` : `${minutes / 60} h`}`, hits ? "bad" : "");
}

function put(name, value, note, tone) {
  const figure = figures[name];
  text(figure.value, count(value));
  text(figure.note, note);
  attr(figure.node, "data-tone", tone || null);
}

function retryIn({ state, retryAt }) {
  const left = Math.ceil((retryAt - Date.now()) / 1000);
  return state === "waiting" && left > 0 ? `Not connected, retrying in ${left} s` : "Connecting";
}

/** Called every second, too, while the service does not respond. */
export function drawPlace() {
  const { session, connection, phase } = store;
  text(byId("place"), session?.host ?? "");
  attr(document.documentElement, "data-seq", session?.seq); // up to which event the page is current
  const [tone, words] =
    phase === "error" ? ["bad", "Error"]
    : phase === "loading" ? ["waiting", "Loading"]
    : connection.state === "live" ? ["live", "Live"]
    : ["bad", retryIn(connection)];
  attr(byId("live"), "data-tone", tone);
  text(byId("live-text"), words);
  text(byId("foot"), session ? `Fleetgate ${session.version} on ${session.host}` : "");
  document.title = store.waiting ? `(${count(store.waiting)}) Fleetgate` : "Fleetgate";
}
