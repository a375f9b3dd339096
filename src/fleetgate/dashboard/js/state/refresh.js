// Reads the state of the gate. An event only says that something changed; the page then reads everything in one answer,
// at most a few times a second, less often when answers are slow.
import { get } from "./api.js";
import { learn, now } from "../base/clock.js";
import { refuse, sessionHeaders } from "./session.js";
import { store, update } from "./store.js";

export const PAGE = 25;
export const SEARCHED = 10_000; // how many of the queue a search looks at
const SOONEST_MS = 250;
const CALM_MS = 5_000; // estimates and cooldowns change without an event
const SEARCH_MS = 2_000; // the whole queue is read at most this often

let timer = 0;
let busy = false;
let again = false;
let ended = 0;
let cost = 0;
/** @type {{tickets: any[], total: number, at: number, cost: number} | null} */
let whole = null;

/** Something changed: read soon. */
export function poke() {
  if (busy) {
    again = true;
  } else if (!timer) {
    const wait = Math.max(40, ended + Math.max(SOONEST_MS, cost * 3) - performance.now());
    timer = setTimeout(read, wait);
  }
}

/** Read at once. */
export async function readNow() {
  clearTimeout(timer);
  timer = 0;
  if (busy) again = true;
  else await read();
}

/** Another page or another search. @param {Partial<typeof store.view>} view */
export function look(view) {
  update({ view: { ...store.view, page: 0, ...view } });
  return readNow();
}

async function read() {
  timer = 0;
  if (document.hidden && store.phase === "ready") return;
  busy = true;
  again = false;
  const started = performance.now();
  const shown = sessionHeaders();
  try {
    const view = store.view;
    const filtered = Boolean(view.query || view.pool);
    const offset = view.page * PAGE;
    const first = !filtered && offset === 0;
    const [all, queue] = await Promise.all([
      get(`/v1/overview?tickets=${first ? PAGE : 0}`),
      filtered ? wholeQueue() : first ? null : get(`/v1/tickets?limit=${PAGE}&offset=${offset}`),
    ]);
    const { status, session, leases } = all;
    learn(status.at);
    if (!session.may_change) refuse(shown);
    update({
      phase: "ready", problem: null, trouble: "", session, leases,
      pools: status.pools, backoffs: status.backoffs, running: status.running, waiting: status.waiting,
    });
    if (view === store.view) showQueue(filtered ? queue.tickets.filter(matcher(view)) : (queue ?? all).tickets, filtered);
    else again = true;
  } catch (error) {
    const status = error.status ?? -1;
    if (status === 401) refuse(shown);
    if (store.phase !== "ready" || status === 401) update({ phase: "error", problem: { status, error: error.message } });
    else if (status !== 0) update({ trouble: `${error.message}. This page shows the last known state.` });
    setTimeout(poke, 3_000);
  } finally {
    busy = false;
    ended = performance.now();
    cost = ended - started;
    if (again) poke();
  }
}

function showQueue(tickets, filtered) {
  const matching = filtered ? tickets.length : store.waiting;
  const last = Math.max(0, Math.ceil(matching / PAGE) - 1);
  if (store.view.page > last) {
    update({ view: { ...store.view, page: last } });
    again = again || !filtered;
  }
  const from = filtered ? store.view.page * PAGE : 0;
  const searched = filtered && whole ? Math.min(whole.total, SEARCHED) : 0;
  update({ queue: { tickets: tickets.slice(from, from + PAGE), matching, searched } });
}

async function wholeQueue() {
  const fresh = whole && performance.now() - whole.at < Math.max(SEARCH_MS, whole.cost * 5);
  if (fresh) {
    setTimeout(poke, SEARCH_MS);
    return whole;
  }
  const started = performance.now();
  const { tickets, total } = await get(`/v1/tickets?limit=${SEARCHED}`);
  whole = { tickets, total, at: performance.now(), cost: performance.now() - started };
  return whole;
}

/** Drop the copy of the queue that searches use, after this page has changed it. */
export function forgetQueue() {
  whole = null;
}

/** Every word must be found somewhere in the ticket. */
export function matcher({ query, pool }) {
  const wanted = query.toLowerCase().split(/\s+/).filter(Boolean);
  return (ticket) => {
    if (pool && !ticket.reason.pools.some((name) => `${ticket.kind} ${name}` === pool)) return false;
    if (!wanted.length) return true;
    const { id, command, models, project, reason, holder, client, role, key, kind } = ticket;
    const fields = [id, command, ...models, project, reason.code, reason.text, holder?.host, holder?.pid, client, role, key, kind];
    const text = fields.join("\n").toLowerCase();
    return wanted.every((word) => text.includes(word));
  };
}

let lastCalm = 0;

/** Called every second: read when a pause or backoff just ended, and now and then anyway. */
export function calmly() {
  const passed = (iso) => iso && Math.abs(Date.parse(iso) + 500 - now()) < 1_000;
  const due = store.pools.some((pool) => passed(pool.paused_until)) || store.backoffs.some((each) => passed(each.until));
  const moment = performance.now();
  if (due || moment - lastCalm > Math.max(CALM_MS, cost * 20)) {
    lastCalm = moment;
    poke();
  }
}
