// The Budgets page: a card for each budget and rate, trouble first.
import { setTime, timeNode } from "../base/clock.js";
import { attr, byId, h, reconcile, show, text } from "../base/dom.js";
import { count } from "../base/format.js";
import { icon } from "../base/icons.js";
import { amountOf, figureOf } from "../base/money.js";
import { jumpTo } from "../frame/pages.js";
import { look } from "../state/refresh.js";
import { mayChange, onChange, store } from "../state/store.js";
import { nothing } from "../base/table.js";
import { resetBudget } from "./actions.js";
import { addBudget, editBudget, newBudget, WHEN_EMPTY } from "./dialogs.js";
import { budgetsReader, byTrouble, shareOf, standing, wholeOf } from "./reading.js";

const PERIODS = { "1s": "second", "1m": "minute", "1h": "hour" };

const list = h("ul", { class: "budgets" });
const empty = nothing("No budgets",
  "Limit what a project may cost with `fleetgate budget set project:web usd 20 --per day`, or in the config file under `[budgets]`. The rates that providers report appear here automatically.");
const loading = h("p", { class: "nothing", text: "Loading budgets…" });
const failed = h("div", { class: "nothing", role: "alert", hidden: true }, h("p", { class: "nothing-title", text: "The budgets cannot be read" }), h("p", {}),
  h("button", { type: "button", class: "button small", text: "Try again", on: { click: () => budgetsReader.readNow() } }));
const add = h("button", { type: "button", class: "button", text: "New budget…", on: { click: () => newBudget() } });

export function setUpBudgets() {
  byId("budget-legend").append(...[["used", "used"], ["reserved", "reserved"], ["left", "left"]].map(([kind, name]) => h("span", {}, h("i", { class: `budget-key ${kind}` }), name)));
  byId("budget-tools").append(add);
  byId("budgets-body").append(list, h("div", { class: "card", id: "budgets-nothing" }, empty, loading, failed));
  onChange(["budgets", "session", "route"], draw);
  onChange(["route", "phase"], () => budgetsReader.poke());
}

function draw() {
  if (store.route.page !== "budgets") return;
  const { phase, problem, list: budgets } = store.budgets;
  const none = phase === "ready" && budgets.length === 0;
  text(byId("budgets-count"), budgets.length ? count(budgets.length) : "");
  show(byId("budget-legend"), budgets.length > 0);
  show(add, mayChange());
  show(list, phase !== "error" && budgets.length > 0);
  show(byId("budgets-nothing"), phase !== "ready" || none);
  show(empty, none);
  show(loading, phase === "loading");
  show(failed, phase === "error");
  text(failed.children[1], `The service reports: ${problem}.`);
  reconcile(list, byTrouble(budgets), (budget) => budget.name, make, change);
}

function make() {
  const node = /** @type {any} */ (h("li", { class: "card budget" }));
  const button = (title, name, act) => h("button", { type: "button", class: "icon-button", title, on: { click: () => act(node.budget) } }, icon(name));
  const p = (node.parts = {
    name: h("h3", { class: "pool-name" }),
    kind: h("span", { class: "kind" }),
    used: h("span", { class: "pool-taken" }),
    amount: h("span", { class: "pool-limit" }),
    added: h("span", { class: "budget-added" }),
    bar: h("div", { class: "budget-bar", role: "img" }, h("i", { class: "used" }), h("i", { class: "reserved" })),
    state: h("span", { class: "chip" }),
    queue: h("button", { type: "button", class: "pool-queue", on: { click: () => showWaiting(node.budget) } }),
    none: h("span", { class: "pool-queue none" }),
    left: h("span", {}),
    reset: h("span", {}),
    until: timeNode(null, "left"),
    rules: h("p", { class: "pool-rules" }),
    edit: button("Change", "edit", editBudget),
    more: button("Add", "add", addBudget),
    restart: button("Reset", "restore", resetBudget),
  });
  node.append(
    h("header", { class: "pool-head" }, h("div", { class: "pool-title" }, p.name, p.kind), h("div", { class: "pool-actions" }, p.more, p.restart, p.edit)),
    h("p", { class: "pool-number" }, p.used, p.amount, p.added),
    p.bar,
    h("div", { class: "pool-facts" }, p.state, p.queue, p.none),
    h("p", { class: "budget-facts" }, p.left, h("span", {}, p.reset, " ", p.until)),
    p.rules,
  );
  return node;
}

function change(node, budget) {
  node.budget = budget;
  const p = node.parts;
  const state = standing(budget);
  const { unit } = budget;
  attr(node, "data-state", { empty: "over", nearly: "reduced", well: "open" }[state]);
  text(p.name, budget.name.endsWith(` ${unit}/${budget.per}`) ? budget.name.slice(0, -(unit.length + budget.per.length + 2)) : budget.name);
  attr(p.name, "title", budget.name);
  text(p.kind, `${unit}/${budget.per}`);
  text(p.used, figureOf(budget.used, unit));
  text(p.amount, budget.rate ? `/ ${amountOf(wholeOf(budget), unit)}` : `/ ${amountOf(budget.base, unit)} per ${periodName(budget.per)}`);
  text(p.added, budget.added ? `+ ${amountOf(budget.added, unit)} for now` : "");
  drawBar(p.bar, budget);
  attr(p.state, "class", `chip ${{ empty: "over", nearly: "reduced", well: "" }[state]}`);
  text(p.state, stateText(budget, state));
  text(p.queue, `${count(budget.waiting)} waiting`);
  attr(p.queue, "aria-label", `${count(budget.waiting)} waiting for ${budget.name}: show them`);
  const blocks = budget.waiting > 0 && state !== "well"; // otherwise they wait for something else that they need
  show(p.queue, blocks);
  show(p.none, !blocks);
  text(p.none, budget.waiting ? `${count(budget.waiting)} waiting for other limits` : "none waiting");
  text(p.left, budget.free < 0 ? `${amountOf(-budget.free, unit)} more than allowed` : `${amountOf(budget.free, unit)} left`);
  text(p.reset, budget.rate ? `refills ${figureOf(budget.amount, unit)} a ${periodName(budget.per)}` : budget.resets_at ? "resets in" : "starts with its first use");
  setTime(p.until, budget.resets_at);
  text(p.rules, rulesOf(budget));
  const mine = mayChange() && budget.source !== "provider"; // a provider's rate is as the provider reports it
  for (const [part, verb] of [[p.edit, "Change"], [p.more, "Add to"], [p.restart, "Reset"]]) {
    show(part, mine);
    attr(part, "aria-label", `${verb} ${budget.name}`);
  }
}

const periodName = (per) => PERIODS[per] ?? per;

function stateText(budget, state) {
  if (state === "empty") return budget.rate ? "in use, refills" : "used up";
  const share = Math.floor(100 * shareOf(budget));
  return share === 0 && budget.used + budget.reserved > 0 ? "less than 1 % used" : share === 0 ? "unused" : `${share} % used`;
}

/** Used, reserved and left, as parts of the whole; what is over it is not drawn. */
function drawBar(node, budget) {
  const whole = Math.max(wholeOf(budget), budget.used + budget.reserved) || 1;
  const { unit } = budget;
  attr(node, "data-state", standing(budget));
  node.children[0].style.setProperty("--part", String(budget.used / whole));
  node.children[1].style.setProperty("--part", String(budget.reserved / whole));
  attr(node, "aria-label", `${amountOf(budget.used, unit)} of ${amountOf(wholeOf(budget), unit)} used, ${amountOf(budget.reserved, unit)} reserved, ${amountOf(Math.max(0, budget.free), unit)} left`);
}

function rulesOf(budget) {
  const parts = [`when used up: ${WHEN_EMPTY.find(([name]) => name === budget.when_empty)?.[1] ?? budget.when_empty}`];
  if (budget.estimate === "max") parts.push("reserves the most that a call can use");
  if (budget.rate && budget.burst && budget.burst !== budget.amount) parts.push(`saves up to ${amountOf(budget.burst, budget.unit)}`);
  if (budget.provider_amount !== null && budget.provider_amount !== undefined && budget.provider_amount !== budget.amount) parts.push(`the provider's limit is ${amountOf(budget.provider_amount, budget.unit)}`);
  parts.push({ file: "from the config file", "run time": "set at run time", provider: "reported by the provider" }[budget.source] ?? budget.source);
  return parts.join(" · ");
}

/** The part of the queue that names this budget in its reason. */
function showWaiting(budget) {
  jumpTo("queue");
  return look({ query: budget.name, pool: "" });
}
