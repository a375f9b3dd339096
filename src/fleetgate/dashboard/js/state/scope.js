// Reads what the page of one pool or one project shows besides the state of the gate: its part of the queue, its jobs and its usage.
import { get } from "./api.js";
import { makeReader } from "./reader.js";
import { pageSize } from "./refresh.js";
import { store, update } from "./store.js";

/** What the address names, as a key; "" where it is neither a pool nor a project. */
export function scopeKey({ page, name, query } = store.route) {
  return name && (page === "pool" || page === "projects") ? `${page} ${query.kind ?? ""} ${name}` : "";
}

async function read() {
  const of = scopeKey();
  const { page, name, query } = store.route;
  const limit = String(pageSize());
  try {
    if (page === "pool") {
      const { tickets, matching } = await get(`/v1/tickets?${new URLSearchParams({ limit, pool: name, ...(query.kind ? { kind: query.kind } : {}) })}`);
      show({ of, tickets, waiting: matching, jobs: [], usage: null });
    } else {
      const [queue, jobs, usage] = await Promise.all([
        get(`/v1/tickets?${new URLSearchParams({ limit, project: name })}`),
        get(`/v1/jobs?${new URLSearchParams({ limit, project: name, all: "true" })}`).catch(() => ({ jobs: [] })), // a store in memory has none
        get(`/v1/usage?${new URLSearchParams({ by: "model", since: "24h", project: name })}`),
      ]);
      show({ of, tickets: queue.tickets, waiting: queue.matching, jobs: jobs.jobs, usage });
    }
  } catch {
    // A banner says that the connection is lost, or the store in trouble.
  }
  if (scopeKey() !== of) scopeReader.poke();
}

function show(scope) {
  if (scope.of === scopeKey()) update({ scope });
}

export const scopeReader = makeReader(read, {
  wanted: () => store.phase === "ready" && scopeKey() !== "" && !document.hidden, soonestMs: 500, calmMs: 5_000,
});
