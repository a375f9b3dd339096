// The plan windows: one card for each account, with how much is used, when it resets, and whether it lasts until then.
import { attr, byId, h, reconcile, show, text } from "../base/dom.js";
import { clock, count } from "../base/format.js";
import { onChange, store } from "../state/store.js";

const DAY_MS = 20 * 3_600_000;
const RANK = { dry: 0, tight: 1, safe: 2 };
const weekday = new Intl.DateTimeFormat(undefined, { weekday: "short" });

const list = h("ul", { class: "plans" });
const total = h("span", { class: "count" });
const section = h(
  "section",
  { id: "plans", class: "section", "aria-labelledby": "plans-title", hidden: true },
  h("header", { class: "section-head" }, h("h2", { id: "plans-title" }, "Plan windows ", total)),
  list,
);

export function setUpPlans() {
  byId("account-cards").append(section);
  onChange(["plans"], draw);
}

function draw() {
  const accounts = new Map();
  for (const plan of store.plans) accounts.set(plan.account, [...(accounts.get(plan.account) ?? []), plan]);
  const cards = [...accounts].map(([account, windows]) => ({ account, windows, worst: Math.min(...windows.map((each) => RANK[each.runway])) }));
  cards.sort((one, other) => one.worst - other.worst || one.account.localeCompare(other.account));
  show(section, cards.length > 0);
  text(total, cards.length > 1 ? count(cards.length) : "");
  reconcile(list, cards, (card) => card.account, makeCard, changeCard);
}

function makeCard() {
  const node = /** @type {any} */ (h("li", { class: "card plan" }));
  node.parts = { name: h("h3", { class: "plan-name" }), windows: h("ul", { class: "plan-windows" }) };
  node.append(node.parts.name, node.parts.windows);
  return node;
}

function changeCard(node, card) {
  attr(node, "data-runway", Object.keys(RANK)[card.worst]);
  text(node.parts.name, card.account);
  reconcile(node.parts.windows, card.windows, (each) => each.window, makeWindow, changeWindow);
}

export function makeWindow() {
  const node = /** @type {any} */ (h("li", { class: "plan-window" }));
  const p = (node.parts = {
    text: h("p", { class: "plan-text" }),
    used: h("i", { class: "used" }),
    reserve: h("i", { class: "kept" }),
    held: h("p", { class: "plan-held" }),
  });
  node.append(p.text, h("div", { class: "plan-bar", "aria-hidden": "true" }, p.used, p.reserve), p.held);
  return node;
}

export function changeWindow(node, plan) {
  const p = node.parts;
  attr(node, "data-runway", plan.runway);
  text(p.text, sentence(plan));
  p.used.style.setProperty("--part", Math.min(1, plan.used_percent / 100).toFixed(4));
  p.reserve.style.setProperty("--part", ((plan.reserve_percent ?? 0) / 100).toFixed(4));
  text(p.held, held(plan));
  show(p.held, Boolean(p.held.textContent));
}

/** "63 % of 5 h, resets 14:10, runs dry 13:20" */
export function sentence(plan) {
  const parts = [`${Math.floor(plan.used_percent)} % of ${spaced(plan.window)}`];
  if (plan.resets_at) parts.push(`resets ${moment(plan.resets_at)}`);
  if (plan.runway === "dry") parts.push(plan.used_percent >= 100 ? "used up" : `runs dry ${moment(plan.dry_at)}`);
  else parts.push(plan.runway);
  return parts.join(", ");
}

function held(plan) {
  const waiting = plan.waiting ? ` (${count(plan.waiting)} waiting)` : "";
  if (plan.normal_continues_at) return `Normal and batch work continues ${moment(plan.normal_continues_at)}${waiting}`;
  return plan.batch_continues_at ? `Batch work continues ${moment(plan.batch_continues_at)}${waiting}` : "";
}

/** The time, with the day where that is far. */
function moment(iso) {
  const at = Date.parse(iso);
  return at - Date.now() > DAY_MS ? `${weekday.format(at)} ${clock(at)}` : clock(at);
}

const spaced = (window) => window.replace(/^(\d+)([a-z])/, "$1 $2").replace("_", " ");
