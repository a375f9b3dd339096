// The Accounts page: a row for each account of a provider, with its slots, queue, windows, budgets and backoffs side by side.
import { setTime, timeNode } from "../base/clock.js";
import { attr, byId, h, reconcile, show, text } from "../base/dom.js";
import { count, some, words } from "../base/format.js";
import { amountOf, figureOf } from "../base/money.js";
import { keepOneStop } from "../base/roving.js";
import { makeRow, makeTable, nothing } from "../base/table.js";
import { shareOf, standing, wholeOf } from "../budgets/reading.js";
import { changeWindow, makeWindow } from "../fleet/plans.js";
import { address, poolAddress } from "../frame/pages.js";
import { slotsOf, slotsText } from "../pools/slots.js";
import { onChange, poolKey, store, update } from "../state/store.js";
import { accountsReader, byTrouble, matching, standingOf } from "./reading.js";

/** @type {[string, string][]} */
const COLUMNS = [["name", "Account"], ["account-slots", "Slots"], ["waits", "Waiting"], ["windows", "Plan windows"], ["account-budgets", "Budgets"], ["state", "Held back"]];
const MANY = 8; // with more, there is a search

const { table, body } = makeTable("Accounts", COLUMNS);
const empty = nothing("No accounts yet", "An account is listed when an agent or a call uses it, or when the config has a table for it: `[providers.\"anthropic@work\"]`. `fleetgate accounts` prints the same list.");
const none = h("p", { class: "nothing", text: "No account matches." });
const loading = h("p", { class: "nothing", text: "Loading accounts…" });
const failed = h("p", { class: "nothing", role: "alert" });
const input = /** @type {HTMLInputElement} */ (h("input", { id: "account-search", type: "search", placeholder: "Search accounts", autocomplete: "off", spellcheck: "false",
  on: { input: () => update({ accounts: { ...store.accounts, query: input.value } }) } }));
const search = h("label", { class: "search" }, h("span", { class: "sr", text: "Search accounts" }), input);

export function setUpAccounts() {
  byId("account-tools").append(search);
  byId("accounts-body").append(h("div", { class: "card list account-list" }, table, empty, none, loading, failed));
  onChange(["route", "accounts"], draw);
  onChange(["route", "phase"], () => accountsReader.poke());
}

function draw() {
  if (store.route.page !== "accounts") return;
  const { phase, problem, list, query } = store.accounts;
  const found = matching(byTrouble(list), query);
  text(byId("accounts-count"), !list.length ? "" : found.length === list.length ? count(list.length) : `${count(found.length)} of ${count(list.length)}`);
  show(search, list.length > MANY);
  show(table, phase === "ready" && found.length > 0);
  show(empty, phase === "ready" && list.length === 0);
  show(none, phase === "ready" && list.length > 0 && found.length === 0);
  show(loading, phase === "loading");
  show(failed, phase === "error");
  text(failed, `The accounts cannot be read: ${problem}.`);
  reconcile(body, found, ({ account }) => account, make, change);
  keepOneStop(body);
}

function make() {
  const { node, cells } = makeRow(COLUMNS.map(([name]) => name));
  for (const [name, title] of COLUMNS.slice(1)) cells[name].dataset.label = title;
  const list = (cell) => {
    const made = h("ul", {});
    cell.append(made);
    return made;
  };
  node.parts = {
    ...cells, account: h("span", { class: "account-name" }), chips: h("p", { class: "account-chips" }), running: h("p", { class: "account-facts" }),
    slotList: list(cells["account-slots"]), windowList: list(cells.windows), budgetList: list(cells["account-budgets"]), stateList: list(cells.state),
  };
  cells.name.append(node.parts.account, node.parts.running, node.parts.chips);
  return node;
}

function change(node, account) {
  const p = node.parts;
  attr(node, "data-state", standingOf(account));
  text(p.account, account.account);
  text(p.running, runningText(account));
  reconcile(p.chips, chipsOf(account), ([name]) => name, () => h("span", {}), (chip, [name, tone, title]) => {
    attr(chip, "class", `chip ${tone}`);
    attr(chip, "title", title);
    text(chip, name);
  });
  text(p.waits, account.waiting ? count(account.waiting) : "–");
  attr(p.waits, "data-tone", account.waiting ? "queue" : null);
  attr(p.waits, "data-none", account.waiting ? null : "true"); // left out on a phone
  fill(p["account-slots"], p.slotList, account.pools, poolKey, makePool, (item, pool) => changePool(item, pool, account.account));
  fill(p.windows, p.windowList, account.windows, (each) => each.window, makeWindow, changeWindow);
  fill(p["account-budgets"], p.budgetList, account.budgets, (each) => each.name, makeBudget, changeBudget);
  fill(p.state, p.stateList, heldBy(account), (each) => each.of, makeHeld, changeHeld);
}

function fill(cell, list, items, keyOf, makeItem, changeItem) {
  attr(cell, "data-none", items.length ? null : "true");
  reconcile(list, items, keyOf, makeItem, changeItem);
}

function runningText({ agents, calls }) {
  const parts = [agents && some(agents, "agent"), calls && some(calls, "call")].filter(Boolean);
  return parts.length ? `${parts.join(", ")} running` : "nothing running";
}

/** How it is used, and what is known about its login. @returns {[string, string, string][]} */
function chipsOf({ login, identity_known: known, in_set: set }) {
  const logins = { found: ["login found", "", "The credential is where it should be"], missing: ["no login", "over", "The place where its credential should be is empty"], unreadable: ["login unreadable", "over", "Its credential cannot be read"] };
  const sets = { use: ["in the set", "full", "Requests that name no account may use it"], then: ["spill", "", "Requests that name no account use it when no other account of the set has room"] };
  const chips = [sets[set], logins[login]].filter(Boolean);
  return known ? [...chips, ["identity known", "", "The provider has named the organization of its login: a refreshed token is the same account"]] : chips;
}

// Slots.

function makePool() {
  const node = /** @type {any} */ (h("li", { class: "account-pool" }));
  const p = (node.parts = { link: h("a", { class: "account-part" }), figure: h("span", { class: "account-figure" }), bar: h("div", { class: "plan-bar", role: "img" }, h("i", { class: "used" })) });
  node.append(h("p", { class: "account-line" }, p.link, p.figure), p.bar);
  return node;
}

function changePool(node, pool, account) {
  const { taken, limit } = slotsOf(pool);
  const models = pool.pool.startsWith(account) ? pool.pool.slice(account.length).replace(/^\//, "") : pool.selector;
  text(node.parts.link, models ? `${models} ${pool.kind}` : pool.kind);
  attr(node.parts.link, "href", poolAddress(pool));
  attr(node.parts.link, "title", pool.pool);
  const cap = pool.cap !== null && pool.cap !== pool.limit ? ` (cap ${pool.cap})` : "";
  text(node.parts.figure, `${taken} / ${pool.limit ?? "∞"}${cap}`);
  attr(node, "data-full", taken >= limit && limit > 0 ? "true" : null);
  attr(node.parts.bar, "aria-label", slotsText(pool));
  node.parts.bar.firstElementChild.style.setProperty("--part", String(limit ? Math.min(1, taken / limit) : 0));
}

// Budgets.

function makeBudget() {
  const node = /** @type {any} */ (h("li", {}));
  const p = (node.parts = { link: h("a", { class: "account-part", href: address("budgets") }), figure: h("span", { class: "account-figure" }), bar: h("div", { class: "budget-bar", role: "img" }, h("i", { class: "used" }), h("i", { class: "reserved" })) });
  node.append(h("p", { class: "account-line" }, p.link, p.figure), p.bar);
  return node;
}

function changeBudget(node, budget) {
  const { unit } = budget;
  const whole = Math.max(wholeOf(budget), budget.used + budget.reserved) || 1;
  text(node.parts.link, `${unit}/${budget.per}`);
  attr(node.parts.link, "title", budget.name);
  text(node.parts.figure, `${figureOf(budget.used, unit)} / ${figureOf(wholeOf(budget), unit)}`);
  attr(node.parts.bar, "data-state", standing(budget));
  attr(node.parts.bar, "aria-label", `${amountOf(budget.used, unit)} of ${amountOf(wholeOf(budget), unit)} used (${Math.floor(100 * shareOf(budget))} %)`);
  node.parts.bar.children[0].style.setProperty("--part", String(budget.used / whole));
  node.parts.bar.children[1].style.setProperty("--part", String(budget.reserved / whole));
}

// Backoffs and pauses.

function heldBy({ account, backoffs, pools }) {
  const held = backoffs.map((each) => ({ of: each.key, what: each.key === account ? "" : each.key.slice(account.length + 1), why: words(each.reason), until: each.until, evidence: each.evidence }));
  const paused = pools.filter((pool) => pool.paused).map((pool) => ({ of: poolKey(pool), what: pool.pool, why: pool.pause_cause ? "paused after a rate limit" : "paused", until: pool.paused_until, evidence: "" }));
  return [...held, ...paused];
}

function makeHeld() {
  const node = /** @type {any} */ (h("li", {}));
  const p = (node.parts = { why: h("span", { class: "chip over" }), what: h("span", { class: "account-part" }), until: timeNode(null, "left"), after: h("span", { class: "account-figure" }) });
  p.after.append("for ", p.until);
  node.append(h("p", { class: "account-line" }, p.why, p.after), p.what);
  return node;
}

function changeHeld(node, { what, why, until, evidence }) {
  text(node.parts.why, why);
  attr(node.parts.why, "title", evidence || null);
  text(node.parts.what, what);
  show(node.parts.what, Boolean(what));
  setTime(node.parts.until, until);
  show(node.parts.after, Boolean(until));
}
