// The state of the page and the listeners to its changes. Sections are drawn at most once a frame.

/**
 * @typedef {Object} Connection
 * @property {"connecting" | "live" | "waiting"} state
 * @property {number} retryAt   when it is tried again (Date.now()), while waiting
 * @property {number} lostAt   when it was last live; 0: it is, or never was
 */

export const store = {
  /** @type {"loading" | "ready" | "error"} */ phase: "loading",
  /** @type {{status: number, error: string} | null} */ problem: null,
  session: null,
  /**
   * What the address names: a page, the name of the pool or project that it shows, the job, lease or ticket that is open, and options.
   * @type {{page: string, name: string, item: {type: string, id: string} | null, query: Record<string, string>}}
   */
  route: { page: "fleet", name: "", item: null, query: {} },
  pools: [],
  backoffs: [],
  /** The windows of subscriptions, with their runway. */
  plans: [],
  leases: [],
  running: 0,
  waiting: 0,
  /** One page of the queue; `matching` is how many the filter leaves. */
  queue: { tickets: [], matching: 0 },
  /** The page and the filter of the queue. */
  view: { page: 0, query: "", pool: "" },
  /** One page of the jobs. @type {{phase: "loading" | "ready" | "error", problem: string, list: any[], total: number, counts: Record<string, number>}} */
  jobs: { phase: "loading", problem: "", list: [], total: 0, counts: {} },
  jobsView: { page: 0, choice: "all" },
  series: { samples: [], stepS: 5 },
  chart: { pool: "", minutes: 60 },
  /** The answer of /v1/usage for `view`. @type {{phase: "loading" | "ready" | "error", problem: string, view: string, answer: any}} */
  usage: { phase: "loading", problem: "", view: "", answer: null },
  /** The runs of one row of it. @type {{phase: "loading" | "ready" | "error", problem: string, view: string, list: any[], left: number}} */
  runs: { phase: "loading", problem: "", view: "", list: [], left: 0 },
  /** @type {{phase: "loading" | "ready" | "error", problem: string, list: any[]}} */
  budgets: { phase: "loading", problem: "", list: [] },
  /** What one pool's or project's page shows besides: `of` says whose it is. @type {{of: string, tickets: any[], waiting: number, jobs: any[], usage: any}} */
  scope: { of: "", tickets: [], waiting: 0, jobs: [], usage: null },
  /** The accounts, and the words that they are searched for. @type {{phase: "loading" | "ready" | "error", problem: string, list: any[], query: string}} */
  accounts: { phase: "loading", problem: "", list: [], query: "" },
  /** The limit of the pool that is shown: `of` says whose it is, and over how many hours. @type {{of: string, hours: number, explanation: any, history: any}} */
  limits: { of: "", hours: 6, explanation: null, history: null },
  /** @type {{phase: "loading" | "ready" | "error", problem: string, list: any[], usage: any[]}} */
  projects: { phase: "loading", problem: "", list: [], usage: [] },
  /** @type {{phase: "loading" | "ready" | "error", problem: string, list: any[], usage: any[]}} */
  accessKeys: { phase: "loading", problem: "", list: [], usage: [] },
  /** The answer of the search in the history. @type {{phase: "loading" | "ready" | "error", problem: string, of: string, events: any[], next: number | null, searched: number, types: string[]}} */
  found: { phase: "loading", problem: "", of: "", events: [], next: null, searched: 0, types: [] },
  /** The latest events. */
  events: [],
  trouble: "",
  /** @type {Connection} */ connection: { state: "connecting", retryAt: 0, lostAt: 0 },
};

const listeners = [];
const changed = new Set();
let drawing = 0;

/** Call `draw` when one of these fields changes. @param {(keyof typeof store)[]} fields @param {() => void} draw */
export function onChange(fields, draw) {
  listeners.push({ fields, draw });
}

/** @param {Partial<typeof store>} values */
export function update(values) {
  Object.assign(store, values);
  for (const name of Object.keys(values)) changed.add(name);
  if (!drawing) drawing = requestAnimationFrame(drawChanged);
}

function drawChanged() {
  drawing = 0;
  const names = new Set(changed);
  changed.clear();
  for (const { fields, draw } of listeners) if (fields.some((field) => names.has(field))) draw();
}

export const mayChange = () => store.session?.may_change === true;
/** Whether this browser sees one project alone: it is signed in with the key of an agent. */
export const isOfProject = () => store.session?.role === "agent";
/** Whether the requests and jobs that are shown may be cancelled and stopped: an agent's key sees its own alone. */
export const mayManage = () => mayChange() || isOfProject();
export const mayManageKeys = () => store.session?.role === "admin" && mayChange();

/** A pool's key, in the series and in the page. */
export const poolKey = (pool) => `${pool.kind} ${pool.pool}`;
