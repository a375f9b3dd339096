// The actions on budgets. Each reports what it did, and offers to undo it where that is possible.
import { attempt, started } from "../frame/attempt.js";
import { send } from "../state/api.js";
import { confirm } from "../base/dialogs.js";
import { some } from "../base/format.js";
import { amountOf } from "../base/money.js";
import { say } from "../base/toasts.js";
import { budgetsReader } from "./reading.js";

const path = (budget) => `/v1/budgets/${encodeURIComponent(budget.name)}`;

function act(action) {
  return attempt(async () => {
    try {
      await action();
    } finally {
      budgetsReader.readNow();
    }
  });
}

/** The rule of a budget; what was added to it for a while is no part of it. */
const ruleOf = ({ selector, unit, base, per, burst, when_empty, estimate, rate }) => (
  { selector, unit, amount: base, per, when_empty, estimate, ...(rate && burst ? { burst } : {}) });

/** Set a budget. @param {any} rule  as the service takes it @param {any} [was]  what it replaces */
export function setBudget(rule, was) {
  return act(async () => {
    const answer = await send("POST", "/v1/budgets", rule);
    const undo = was ? () => setBudget(ruleOf(was)) : () => dropBudget({ name: `${rule.selector} ${rule.unit}/${rule.per}` });
    const before = was && was.base !== rule.amount ? ` (was ${amountOf(was.base, was.unit)})` : "";
    say(`The budget of ${rule.selector} is now ${amountOf(rule.amount, rule.unit)} per ${rule.per}${before}.${started(answer)}`, { undo });
  });
}

/** Change a budget. @param {any} budget @param {any} change */
export const changeBudget = (budget, change) => setBudget({ ...ruleOf(budget), ...change }, budget);

function dropBudget(budget) {
  return act(async () => {
    const answer = await send("DELETE", path(budget));
    say(`Removed the budget ${budget.name}.${started(answer)}`);
  });
}

export async function removeBudget(budget) {
  const sure = await confirm({
    title: "Remove the budget?",
    text: `${waits(budget)}${ofAll(budget)}Nothing limits ${budget.selector} to ${amountOf(budget.base, budget.unit)} per ${budget.per} any more, whatever the config file says.`,
    detail: budget.name,
    yes: "Remove the budget",
  });
  if (!sure) return;
  await act(async () => {
    const answer = await send("DELETE", path(budget));
    say(`Removed the budget ${budget.name}.${started(answer)}`, { undo: () => setBudget(ruleOf(budget)) });
  });
}

/** Drop what was set at run time. */
export function unsetBudget(budget) {
  return act(async () => {
    const answer = await send("POST", `${path(budget)}/unset`, {});
    const now = answer.source ? `${amountOf(answer.amount, budget.unit)} per ${budget.per} again, from the config file` : "removed: the config file has none";
    say(`The budget of ${budget.selector} is ${now}.${started(answer)}`, { undo: () => setBudget(ruleOf(budget)) });
  });
}

export async function resetBudget(budget) {
  const sure = await confirm({
    title: "Reset the budget?",
    text: `${waits(budget)}Its ${amountOf(budget.used, budget.unit)} used so far no longer count, so more than ${amountOf(budget.amount, budget.unit)} can be used in this period. What was used stays in the usage.`,
    detail: budget.name,
    yes: "Reset the budget",
  });
  if (!sure) return;
  await act(async () => {
    const answer = await send("POST", `${path(budget)}/reset`, {});
    say(`Reset the budget ${budget.name}: nothing of it is used.${started(answer)}`);
  });
}

/** @param {any} budget @param {any} body  amount, and until when */
export function addToBudget(budget, body) {
  return act(async () => {
    const answer = await send("POST", `${path(budget)}/add`, body);
    say(`Added ${amountOf(body.amount, budget.unit)} to ${budget.name}.${started(answer)}`);
  });
}

/** Whether a budget is one of several that a rule makes, such as one for each project; then the rule is what can be changed. */
const isOneOfMany = ({ name, selector, unit, per }) => name !== `${selector} ${unit}/${per}`;
export const ofAll = (budget) => (isOneOfMany(budget) ? `This concerns every budget of the rule ${budget.selector}. ` : "");
const waits = ({ waiting }) => (waiting ? `${some(waiting, "request")} waiting for it can start at once. ` : "");
