// How pools are ordered, grouped and filtered. What a person chose is remembered by this browser.
import { stateOf } from "./card.js";
import { isBlocking, slotsOf } from "./slots.js";

const REMEMBERED = "fleetgate.pools";

/** @type {[string, string][]} */
export const SORTS = [["trouble", "Trouble first"], ["name", "By name"], ["use", "Fullest first"], ["waiting", "Longest queue first"]];
/** @type {[string, string][]} */
export const GROUPS = [["", "No groups"], ["provider", "By provider"], ["account", "By account"], ["model", "By model"]];

/** `group` and `form` are null until a person chooses: then the number of pools decides. @type {{sort: string, group: string | null, form: string | null}} */
export const chosen = { sort: "trouble", group: null, form: null, ...remembered() };

export function choose(change) {
  Object.assign(chosen, change);
  try {
    localStorage.setItem(REMEMBERED, JSON.stringify(chosen));
  } catch {
    // Not remembered.
  }
}

function remembered() {
  try {
    const known = JSON.parse(localStorage.getItem(REMEMBERED) ?? "{}");
    const valid = (items, value) => items.some(([name]) => name === value);
    return {
      ...(valid(SORTS, known.sort) ? { sort: known.sort } : {}),
      ...(valid(GROUPS, known.group) ? { group: known.group } : {}),
      ...(["cards", "table"].includes(known.form) ? { form: known.form } : {}),
    };
  } catch {
    return {};
  }
}

/** Paused, over or below its cap: a person may have to act. */
export const isTrouble = (pool) => pool.paused || pool.auto_reduced || slotsOf(pool).over > 0;

/** Whether every word occurs in what a pool shows. */
export function matcher(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  return (pool) => {
    const fields = [pool.pool, pool.kind, pool.selector, pool.account, stateOf(pool, slotsOf(pool))[1]].join("\n").toLowerCase();
    return words.every((word) => fields.includes(word));
  };
}

const share = (pool) => (pool.limit ? (pool.in_flight + pool.foreign) / pool.limit : pool.in_flight + pool.foreign ? 0.5 : 0);
const name = (pool) => `${pool.pool} ${pool.kind}`;
const KEYS = {
  trouble: (pool, many) => [isTrouble(pool) ? 0 : many && isBlocking(pool) ? 1 : 2],
  name: (pool) => [name(pool)],
  use: (pool) => [-share(pool), -(pool.in_flight + pool.foreign), name(pool)],
  waiting: (pool) => [-pool.queued, name(pool)],
};

/**
 * In the chosen order. Trouble first keeps the order of the service otherwise, so that cards keep their place; of many pools, those
 * that requests wait for come next.
 */
export function ordered(pools, many = false) {
  const key = KEYS[chosen.sort] ?? KEYS.trouble;
  return [...pools].sort((one, other) => compare(key(one, many), key(other, many)));
}

/** The group of a pool: its provider, its account or its model; what else a pool counts by is a group of its own. */
export function groupOf(pool, by) {
  const [provider, rest] = split(pool.pool);
  if (by === "account") return pool.account ?? (rest ? `${provider}, any account` : provider);
  if (by === "model") return rest || `${provider}, all models`;
  return provider;
}

/** Provider and model of a pool: anthropic@work/claude-opus-*. */
function split(name) {
  const slash = name.indexOf("/");
  const place = slash < 0 ? name : name.slice(0, slash);
  return [place.split(/[@:]/, 1)[0], slash < 0 ? "" : name.slice(slash + 1)];
}

/** Groups in the order of their first pools. @returns {[string, any[]][]} */
export function grouped(pools, by) {
  const groups = new Map();
  for (const pool of pools) {
    const group = by ? groupOf(pool, by) : "";
    if (groups.has(group)) groups.get(group).push(pool);
    else groups.set(group, [pool]);
  }
  const all = [...groups];
  return chosen.sort === "trouble" || chosen.sort === "name" ? all.sort(([one, ours], [other, theirs]) => compare([rank(ours), one], [rank(theirs), other])) : all;
}

const rank = (pools) => (chosen.sort === "trouble" && pools.some(isTrouble) ? 0 : 1);

function compare(one, other) {
  for (const [place, value] of one.entries()) if (value !== other[place]) return value < other[place] ? -1 : 1;
  return 0;
}
