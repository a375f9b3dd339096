// Reads the budgets, and says how each of them stands.
import { get } from "../state/api.js";
import { makeReader } from "../state/reader.js";
import { store, update } from "../state/store.js";

const SOONEST_MS = 1_000;
const CALM_MS = 5_000; // rates refill without an event
const NEARLY = 0.8;

async function read() {
  try {
    const { budgets } = await get("/v1/budgets");
    update({ budgets: { phase: "ready", problem: "", list: budgets } });
  } catch (error) {
    if (error.status !== 0 || store.budgets.phase !== "ready") update({ budgets: { ...store.budgets, phase: "error", problem: error.message } });
  }
}

const PAGES = ["fleet", "budgets", "projects"]; // the fleet shows budgets that are used up, a project its own
export const budgetsReader = makeReader(read, {
  wanted: () => store.phase === "ready" && PAGES.includes(store.route.page) && !document.hidden, soonestMs: SOONEST_MS, calmMs: CALM_MS,
});

/** The most that a budget can have: of a rate, what it can save up. */
export const wholeOf = (budget) => (budget.rate && budget.burst ? budget.burst : budget.amount);

/** How much of it is used, from 0. Reserved amounts count: no other request can have them. */
export const shareOf = (budget) => (wholeOf(budget) > 0 ? (budget.used + budget.reserved) / wholeOf(budget) : 1);

/**
 * Used up, nearly, or well. A rate is empty again and again; that is trouble only while requests wait.
 * @returns {"empty" | "nearly" | "well"}
 */
export function standing(budget) {
  if (budget.rate) return budget.waiting && shareOf(budget) >= NEARLY ? "empty" : "well";
  if (budget.free <= 0) return "empty";
  return shareOf(budget) >= NEARLY ? "nearly" : "well";
}

const ORDER = { empty: 0, nearly: 1, well: 2 };

/** Trouble first; otherwise by name, so that cards keep their place. */
export function byTrouble(budgets) {
  return [...budgets].sort((one, other) => ORDER[standing(one)] - ORDER[standing(other)] || (one.name < other.name ? -1 : 1));
}
