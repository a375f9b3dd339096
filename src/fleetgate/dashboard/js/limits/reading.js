// Reads what is believed about the limit of the pool that is shown, and how that came about.
import { shownPool } from "../pools/page.js";
import { get } from "../state/api.js";
import { makeReader } from "../state/reader.js";
import { poolKey, store, update } from "../state/store.js";

/** Whether rate limits change the limit of a pool: only then it has a history. */
export const moves = (pool) => pool.on_429 === "adapt" || (pool.on_429 === "step" && pool.account !== null);

/** Which answer is wanted; "" for none. */
export function wantedLimit() {
  const pool = shownPool();
  return pool && moves(pool) ? `${poolKey(pool)} ${store.limits.hours}` : "";
}

export const limitQuery = (pool) => new URLSearchParams({ pool: pool.pool, kind: pool.kind });

async function read() {
  const of = wantedLimit();
  const pool = shownPool();
  if (!pool) return;
  const query = limitQuery(pool);
  try {
    const [explanation, history] = await Promise.all([
      get(`/v1/explain?${query}`),
      get(`/v1/limits/history?${query}&hours=${store.limits.hours}`),
    ]);
    if (of === wantedLimit()) update({ limits: { ...store.limits, of, explanation, history } });
  } catch {
    // A banner says that the connection is lost, or the store in trouble.
  }
  if (wantedLimit() !== of) limitReader.poke();
}

export const limitReader = makeReader(read, {
  wanted: () => store.phase === "ready" && wantedLimit() !== "" && !document.hidden, soonestMs: 2_000, calmMs: 5_000,
});
