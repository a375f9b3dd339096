// Reads the state of the gate. An event only says that something changed; the page then reads everything in one answer,
// at most a few times a second, less often when answers are slow.
import { get } from "./api.js";
import { learn, now } from "../base/clock.js";
import { refuse, sessionHeaders } from "./session.js";
import { isOfProject, store, update } from "./store.js";

const narrow = matchMedia("(max-width: 620px)");
/** How many rows of the queue are a page: fewer on a phone. */
export const pageSize = () => (narrow.matches ? 10 : 25);
const SOONEST_MS = 250;
const RETRY_MS = 3_000;
const CALM_MS = 5_000; // estimates and cooldowns change without an event

let timer = 0;
let busy = false;
let again = false;
let ended = 0;
let cost = 0;

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
    const size = pageSize();
    const offset = view.page * size;
    const first = !isFiltered(view) && offset === 0;
    const [all, queue] = await Promise.all([
      get(`/v1/overview?tickets=${first ? size : 0}`),
      first ? null : get(`/v1/tickets?${queryOf(view, offset)}`),
    ]);
    const { status, session, leases } = all;
    learn(status.at);
    if (!session.may_change && !session.key) refuse(shown); // a key of a viewer changes nothing, and is good
    update({
      phase: "ready", problem: null, trouble: "", session, leases,
      pools: status.pools, plans: status.plans, backoffs: status.backoffs, running: status.running, waiting: status.waiting,
    });
    if (isOfProject()) update({ connection: { state: "live", retryAt: 0, lostAt: 0 } });
    if (view === store.view) showQueue((queue ?? all).tickets, queue ? queue.matching : status.waiting);
    else again = true;
  } catch (error) {
    const status = error.status ?? -1;
    if (status === 401) refuse(shown);
    if (store.phase !== "ready" || status === 401) update({ phase: "error", problem: { status, error: error.message } });
    else if (status !== 0) update({ trouble: `${error.message}. This page shows the last known state.` });
    if (isOfProject() && status === 0) update({ connection: { state: "waiting", retryAt: Date.now() + RETRY_MS, lostAt: store.connection.lostAt || Date.now() } });
    setTimeout(poke, RETRY_MS);
  } finally {
    busy = false;
    ended = performance.now();
    cost = ended - started;
    if (again) poke();
  }
}

const isFiltered = ({ query, pool }) => Boolean(query || pool);

/** What the service is asked for. A pool is its kind and its name. */
function queryOf({ query, pool }, offset) {
  const [kind] = pool.split(" ", 1);
  const filter = pool ? { kind, pool: pool.slice(kind.length + 1) } : {};
  return new URLSearchParams({ limit: String(pageSize()), offset: String(offset), ...(query ? { text: query } : {}), ...filter });
}

function showQueue(tickets, matching) {
  const last = Math.max(0, Math.ceil(matching / pageSize()) - 1);
  if (store.view.page > last) {
    update({ view: { ...store.view, page: last } });
    again = true;
  }
  update({ queue: { tickets, matching } });
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
