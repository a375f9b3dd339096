// Reads the accounts, and says which of them need attention.
import { standing } from "../budgets/reading.js";
import { get } from "../state/api.js";
import { makeReader } from "../state/reader.js";
import { store, update } from "../state/store.js";

async function read() {
  try {
    const { accounts } = await get("/v1/accounts");
    update({ accounts: { ...store.accounts, phase: "ready", problem: "", list: accounts } });
  } catch (error) {
    if (error.status !== 0 || store.accounts.phase !== "ready") update({ accounts: { ...store.accounts, phase: "error", problem: error.message } });
  }
}

export const accountsReader = makeReader(read, {
  wanted: () => store.phase === "ready" && store.route.page === "accounts" && !document.hidden, soonestMs: 1_000, calmMs: 5_000,
});

/** How an account stands: nothing starts on it, something is short, or all is well. @returns {"held" | "short" | "well"} */
export function standingOf({ account, login, backoffs, pools, windows, budgets }) {
  const whole = backoffs.some(({ key }) => key === account);
  if (whole || login === "missing" || login === "unreadable" || windows.some((each) => each.used_percent >= 100)) return "held";
  const short = backoffs.length || pools.some((pool) => pool.paused || pool.auto_reduced) || windows.some((each) => each.runway !== "safe") || budgets.some((each) => standing(each) !== "well");
  return short ? "short" : "well";
}

const ORDER = { held: 0, short: 1, well: 2 };

/** Trouble first; otherwise by name, so that rows keep their place. */
export function byTrouble(accounts) {
  return [...accounts].sort((one, other) => ORDER[standingOf(one)] - ORDER[standingOf(other)] || (one.account < other.account ? -1 : 1));
}

/** Those whose name, or the reason of a backoff, contains these words. */
export function matching(accounts, words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = ({ account, login, backoffs }) => [account, `login ${login}`, ...backoffs.map(({ reason }) => reason)].join(" ").toLowerCase();
  return wanted.length ? accounts.filter((each) => wanted.every((word) => texts(each).includes(word))) : accounts;
}
