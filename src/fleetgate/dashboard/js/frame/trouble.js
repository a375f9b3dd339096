// What needs attention, above everything else: refused logins, used-up budgets, pools that were reduced, paused or are over their limit, jobs that no worker runs.
import { now } from "../base/clock.js";
import { attr, byId, h, reconcile, show, text } from "../base/dom.js";
import { duration, some, words } from "../base/format.js";
import { icon } from "../base/icons.js";
import { standing } from "../budgets/reading.js";
import { clearBackoff } from "../fleet/actions.js";
import { resume, restore } from "../pools/actions.js";
import { slotsOf } from "../pools/slots.js";
import { mayChange, onChange, poolKey, store } from "../state/store.js";
import { address, jumpTo, poolAddress } from "./pages.js";

const narrow = matchMedia("(max-width: 620px)");
const few = () => (narrow.matches ? 3 : 4); // rows until a person asks for all

const LONG_MS = 60_000; // shorter pauses after a rate limit come and go

/** @typedef {{key: string, tone: "bad" | "warn", title: string, href: string, text: string, button?: string, label?: string, act?: () => void}} Trouble */

const list = h("ul", { class: "troubles" });
const more = h("button", { type: "button", class: "link list-more", on: { click: () => {
  whole = !whole;
  draw();
} } });
let whole = false;

export function setUpTrouble() {
  byId("trouble-list").append(list, more);
  onChange(["pools", "backoffs", "budgets", "jobs", "session", "phase"], draw);
}

/** The worst first. @returns {Trouble[]} */
export function troubles() {
  const found = [...store.backoffs.flatMap(ofBackoff), ...store.budgets.list.flatMap(ofBudget), ...store.pools.flatMap(ofPool), ...ofJobs()];
  return found.sort((one, other) => Number(one.tone === "warn") - Number(other.tone === "warn"));
}

function ofBackoff(backoff) {
  const needs = { auth: "was refused by its provider: sign in again", quota: "has used up its quota" }[backoff.reason];
  if (!needs) return [];
  const until = backoff.until ? ` Not used for ${duration(Date.parse(backoff.until) - now())}.` : "";
  return [{
    key: `backoff ${backoff.key}`, tone: "bad", title: backoff.key, href: address("fleet"), text: `${needs}.${until}`,
    button: "Clear", label: `Clear the backoff of ${backoff.key}, because of ${words(backoff.reason)}`, act: () => clearBackoff(backoff),
  }];
}

function ofBudget(budget) {
  if (budget.rate || standing(budget) !== "empty" || (!budget.waiting && budget.when_empty === "warn")) return [];
  const resets = budget.resets_at ? ` It resets in ${duration(Date.parse(budget.resets_at) - now())}.` : "";
  const waits = budget.waiting ? `: ${some(budget.waiting, "request")} waiting` : "";
  return [{ key: `budget ${budget.name}`, tone: "bad", title: budget.name, href: address("budgets"), text: `is used up${waits}.${resets}` }];
}

function ofPool(pool) {
  const same = { key: `pool ${poolKey(pool)}`, title: `${pool.pool} (${pool.kind})`, href: poolAddress(pool) };
  const slots = slotsOf(pool);
  const { over } = slots;
  const found = [];
  if (pool.auto_reduced) {
    const after = pool.on_429 === "adapt" ? "it recovers automatically" : "it stays lower until you restore it";
    found.push({
      ...same, key: `${same.key} reduced`, tone: "warn", text: `was reduced to ${pool.limit} after a rate limit${over ? `, with ${slots.taken} in use` : ""}. Its cap is ${pool.auto_reduced_from}; ${after}.`,
      button: `Restore ${pool.auto_reduced_from}`, label: `Restore ${pool.auto_reduced_from} as the limit of ${pool.pool}`, act: () => restore(pool),
    });
  } else if (pool.notice) found.push({ ...same, tone: "warn", text: pool.notice });
  const left = pool.paused_until ? Date.parse(pool.paused_until) - now() : Infinity;
  if (pool.paused && (pool.pause_cause !== "rate_limited" || left > LONG_MS)) {
    const why = pool.pause_cause === "rate_limited" ? "is paused after a rate limit" : "is paused by a person";
    const until = pool.paused_until ? ` for another ${duration(left + 999)}` : " until a person resumes it";
    found.push({
      ...same, key: `${same.key} paused`, tone: "warn", text: `${why}${until}${pool.queued ? `: ${some(pool.queued, "request")} waiting` : ""}.`,
      button: "Resume", label: `Resume ${pool.pool} (${pool.kind}) now`, act: () => resume(pool),
    });
  }
  if (over && !pool.auto_reduced) found.push({ ...same, key: `${same.key} over`, tone: "warn", text: `has ${over} more in use than its limit of ${pool.limit}. No new agents start until there is room.` });
  return found;
}

function ofJobs() {
  const found = [];
  const held = store.jobs.counts.held ?? 0;
  const jobs = { href: address("fleet"), button: "Jobs", act: () => jumpTo("jobs") };
  if (held) found.push({ ...jobs, key: "held", tone: "warn", title: some(held, "job"), text: `${held === 1 ? "needs" : "need"} approval before ${held === 1 ? "it runs" : "they run"}.` });
  if (store.jobs.list.some((job) => job.reason?.code === "no_worker")) {
    const queued = store.jobs.counts.queued ?? 0;
    found.push({ ...jobs, key: "no worker", tone: "warn", title: some(queued, "job"), text: `${queued === 1 ? "is" : "are"} waiting, and no worker is running: start one with "fleetgate worker".` });
  }
  return found;
}

function draw() {
  const all = store.phase === "ready" ? troubles() : [];
  const shown = whole || all.length <= few() + 1 ? all : all.slice(0, few());
  show(byId("trouble"), all.length > 0);
  text(byId("trouble-count"), all.length > 1 ? String(all.length) : "");
  const badge = byId("trouble-badge");
  text(badge, all.length ? String(all.length) : "");
  attr(badge, "aria-label", all.length ? `, ${some(all.length, "problem")}` : null);
  show(more, all.length > few() + 1);
  text(more, whole ? "Show less" : `Show all ${all.length}`);
  reconcile(list, shown, (each) => each.key, make, change);
}

function make() {
  const node = /** @type {any} */ (h("li", {}));
  const p = (node.parts = {
    icon: h("span", { class: "banner-icon" }, icon("warn")),
    title: h("a", { class: "trouble-name" }),
    text: h("span", {}),
    button: h("button", { type: "button", class: "button small", on: { click: () => node.trouble.act() } }),
  });
  node.append(p.icon, h("p", {}, p.title, " ", p.text), p.button);
  return node;
}

function change(node, trouble) {
  node.trouble = trouble;
  const p = node.parts;
  attr(node, "class", `trouble ${trouble.tone}`);
  text(p.title, trouble.title);
  attr(p.title, "href", trouble.href);
  text(p.text, trouble.text);
  show(p.button, Boolean(trouble.button) && (mayChange() || trouble.button === "Jobs"));
  text(p.button, trouble.button ?? "");
  attr(p.button, "aria-label", trouble.label);
}
