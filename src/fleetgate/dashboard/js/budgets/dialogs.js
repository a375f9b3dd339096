// The dialogs that set, change and add to a budget.
import { dialog, field } from "../base/dialogs.js";
import { h } from "../base/dom.js";
import { amountOf } from "../base/money.js";
import * as actions from "./actions.js";

/** @type {[string, string][]} */
export const UNITS = [["usd", "dollars"], ["tokens", "tokens"], ["input", "input tokens"], ["output", "output tokens"], ["calls", "calls"]];
/** @type {[string, string][]} */
export const WHEN_EMPTY = [
  ["hold", "new requests wait"], ["stop", "running agents are stopped, too"], ["fallback", "the next model is used"], ["warn", "only a warning"],
];
/** @type {[string, string][]} */
const ESTIMATES = [["expected", "what a call is expected to use"], ["max", "the most that a call can use"]];

/** Set a new budget. */
export async function newBudget() {
  const plan = await dialog({
    title: "New budget",
    body: (close) => {
      const selector = h("input", { name: "selector", required: true, autofocus: true, autocomplete: "off", spellcheck: "false", placeholder: "project:web" });
      const unit = select("unit", UNITS, "usd");
      const amount = number("amount", "");
      const per = h("input", { name: "per", required: true, autocomplete: "off", value: "day", list: "budget-periods" });
      const whenEmpty = select("when_empty", WHEN_EMPTY, "hold");
      const submit = (event) => {
        event.preventDefault();
        close({ selector: selector.value.trim(), unit: unit.value, amount: Number(amount.value), per: per.value.trim(), when_empty: whenEmpty.value });
      };
      return [form(submit, close, "Save",
        field("For", selector, "project, project:NAME, host, a provider, or provider/model with * and @account"),
        field("Amount", amount),
        field("Of", unit),
        field("Per", per, "day, week, month, or a duration such as 5h. Up to one hour it refills continuously: 1m"),
        h("datalist", { id: "budget-periods" }, ...["1m", "1h", "5h", "day", "week", "month"].map((value) => h("option", { value }))),
        field("When it is used up", whenEmpty))];
    },
  });
  if (plan) await actions.setBudget(plan);
}

/** Change a budget; only a change is sent. */
export async function editBudget(budget) {
  const plan = await dialog({
    title: budget.name,
    kicker: "Budget",
    body: (close) => {
      const amount = number("amount", budget.base);
      amount.setAttribute("autofocus", "");
      const whenEmpty = select("when_empty", WHEN_EMPTY, budget.when_empty);
      const estimate = select("estimate", ESTIMATES, budget.estimate);
      const submit = (event) => {
        event.preventDefault();
        const change = {};
        if (Number(amount.value) !== budget.base) change.amount = Number(amount.value);
        if (whenEmpty.value !== budget.when_empty) change.when_empty = whenEmpty.value;
        if (estimate.value !== budget.estimate) change.estimate = estimate.value;
        close(Object.keys(change).length ? { change } : null);
      };
      const others = h("div", { class: "dialog-more" }, budget.source === "run time" ? link("Use the config file's value", () => close({ act: actions.unsetBudget })) : null, link("Reset it…", () => close({ act: actions.resetBudget })), link("Remove it…", () => close({ act: actions.removeBudget })));
      return [form(submit, close, "Save",
        field(`Amount per ${budget.per}, in ${UNITS.find(([name]) => name === budget.unit)?.[1] ?? budget.unit}`, amount, `${amountOf(budget.used, budget.unit)} used, ${amountOf(budget.reserved, budget.unit)} reserved by running requests. ${added(budget)}${actions.ofAll(budget)}`.trim()),
        field("When it is used up", whenEmpty),
        field("Reserve for each request", estimate, "With the most that a call can use, the budget is never exceeded."),
        others)];
    },
  });
  if (plan?.act) await plan.act(budget);
  else if (plan) await actions.changeBudget(budget, plan.change);
}

const added = (budget) => (budget.added ? `Besides, ${amountOf(budget.added, budget.unit)} were added for now; that stays. ` : "");

/** Give a budget more, until its window ends. */
export async function addBudget(budget) {
  const plan = await dialog({
    title: `Add to ${budget.name}?`,
    body: (close) => {
      const amount = number("amount", "");
      amount.setAttribute("autofocus", "");
      const submit = (event) => {
        event.preventDefault();
        close({ amount: Number(amount.value) });
      };
      return [form(submit, close, "Add",
        field(`How much more, in ${UNITS.find(([name]) => name === budget.unit)?.[1] ?? budget.unit}`, amount, budget.rate ? "It counts once." : "It counts until the budget resets; then the amount is as before."))];
    },
  });
  if (plan) await actions.addToBudget(budget, plan);
}

function form(submit, close, yes, ...fields) {
  return h("form", { method: "dialog", on: { submit } }, ...fields, h("div", { class: "dialog-foot" },
    h("button", { type: "button", class: "button", text: "Cancel", on: { click: () => close(null) } }),
    h("button", { type: "submit", class: "button primary", text: yes })));
}

const link = (label, act) => h("button", { type: "button", class: "link", text: label, on: { click: act } });

function number(name, value) {
  return h("input", { type: "number", name, value, required: true, min: 0.000001, max: 1_000_000_000_000, step: "any", inputmode: "decimal" });
}

function select(name, items, chosen) {
  return h("select", { name }, ...items.map(([value, label]) => h("option", { value, text: label, selected: value === chosen })));
}
