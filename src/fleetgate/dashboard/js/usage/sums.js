// Sums of usage. Money is added in millionths of a dollar, so that sums are exact; a cost that is not known is null.

const FIELDS = ["calls", "input", "cache_read", "cache_write", "output", "tokens"];

/** @typedef {{calls: number, input: number, cache_read: number, cache_write: number, output: number, tokens: number, cost: number | null, complete: boolean, estimated: number, partial: number}} Sum */

/** @returns {Sum} */
export const nothingUsed = () => ({ calls: 0, input: 0, cache_read: 0, cache_write: 0, output: 0, tokens: 0, cost: null, complete: true, estimated: 0, partial: 0 });

/** Add a row of the service to a sum. @param {Sum} sum */
export function add(sum, row) {
  for (const name of FIELDS) sum[name] += row[name];
  if (row.cost_usd !== null) sum.cost = (sum.cost ?? 0) + Math.round(row.cost_usd * 1e6);
  if (!row.cost_complete) sum.complete = false;
  sum.estimated += row.estimated_calls;
  sum.partial += row.partial_calls;
  return sum;
}

/** One sum for each name. @param {any[]} rows @param {(row: any) => any} nameOf @returns {Map<any, Sum>} */
export function sumsBy(rows, nameOf) {
  const sums = new Map();
  for (const row of rows) {
    const name = nameOf(row);
    let sum = sums.get(name);
    if (!sum) sums.set(name, (sum = nothingUsed()));
    add(sum, row);
  }
  return sums;
}

/** A sum as a row of the service. @param {Sum} sum */
export const rowOf = ({ cost, complete, estimated, partial, ...rest }) => (
  { ...rest, cost_usd: cost === null ? null : cost / 1e6, cost_complete: complete, estimated_calls: estimated, partial_calls: partial });

/** All of them together. @param {any[]} rows */
export const total = (rows) => rows.reduce(add, nothingUsed());

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;

/** The periods: name, title, what one bar covers, and what the service is asked for. */
export const PERIODS = [
  { name: "24h", title: "24 h", spanMs: DAY_MS, stepMs: HOUR_MS, unit: "hour" },
  { name: "7d", title: "7 d", spanMs: 7 * DAY_MS, stepMs: 6 * HOUR_MS, unit: "hour" },
  { name: "30d", title: "30 d", spanMs: 30 * DAY_MS, stepMs: DAY_MS, unit: "day" },
];

/** The bars of an answer: when each begins, with its rows. Hours without usage have a bar, too. */
export function binsOf(answer, { unit, stepMs }) {
  const zone = (t) => (stepMs > HOUR_MS ? new Date(t).getTimezoneOffset() * 60_000 : 0); // hours are those of UTC everywhere
  // A day is a date of the service's calendar, so it is not moved to the zone of this browser.
  const startOf = (t) => (unit === "day" ? Math.floor(t / DAY_MS) * DAY_MS : Math.floor((t - zone(t)) / stepMs) * stepMs + zone(t));
  const timeOf = (row) => startOf(Date.parse(unit === "day" ? `${row.day}T00:00:00Z` : row.hour));
  const times = answer.rows.map(timeOf);
  const first = times.reduce((least, t) => Math.min(least, t), startOf(Date.parse(answer.since)));
  const last = times.reduce((most, t) => Math.max(most, t), startOf(Date.parse(answer.until) - 1));
  const bins = new Map();
  for (let t = first; t <= last; t += stepMs) bins.set(startOf(t), []);
  answer.rows.forEach((row, place) => bins.get(times[place])?.push(row) ?? bins.set(times[place], [row]));
  return [...bins].sort(([one], [other]) => one - other).map(([t, rows]) => ({ t, rows }));
}
