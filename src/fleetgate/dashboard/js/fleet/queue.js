// The queue: the table of waiting tickets, with position, reason and age. It shows one page at a time, so its length does not matter.
import * as actions from "./actions.js";
import { setTime, timeNode } from "../base/clock.js";
import { showTicket } from "./details.js";
import { attr, byId, h, reconcile, show, text } from "../base/dom.js";
import { count, estimate, place, reasonName, who } from "../base/format.js";
import { icon } from "../base/icons.js";
import { makePager } from "../base/pager.js";
import { look, PAGE, SEARCHED } from "../state/refresh.js";
import { keepOneStop } from "../base/roving.js";
import { isBlocking } from "../pools/slots.js";
import { mayChange, onChange, poolKey, store } from "../state/store.js";
import { makeRow, makeTable, nothing } from "../base/table.js";

/** @type {[string, string][]} */
const COLUMNS = [["pos", "#"], ["what", "Command"], ["why", "Reason"], ["age", "Waiting"], ["do", "(Actions)"]];
const TYPING_MS = 180;

const { table, body } = makeTable("Waiting tickets", COLUMNS);
const pager = makePager("the queue", async (page) => {
  await look({ page });
  byId("queue").scrollIntoView({ block: "nearest" });
});
const empty = nothing("Nothing is waiting", "An agent that cannot start at once is listed here, with the reason.");
const unmatched = nothing("No matches in the queue", "The search covers commands, models, projects, hosts, IDs and reasons.");
const partly = h("p", { class: "list-note", hidden: true });

export function setUpQueue() {
  byId("queue-list").append(table, empty, unmatched, partly, pager.node);
  const search = /** @type {HTMLInputElement} */ (byId("search"));
  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => look({ query: search.value.trim() }), TYPING_MS);
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && search.value) {
      event.preventDefault();
      search.value = "";
      look({ query: "" });
    }
  });
  const pool = /** @type {HTMLSelectElement} */ (byId("queue-pool"));
  pool.addEventListener("change", () => look({ pool: pool.value }));
  onChange(["queue", "session", "view", "waiting"], draw);
  onChange(["view"], () => {
    if (search !== document.activeElement && search.value.trim() !== store.view.query) search.value = store.view.query;
  });
  onChange(["pools", "view"], () => drawChoices(pool));
}

function drawChoices(select) {
  const pools = store.pools.filter((pool) => isBlocking(pool) || poolKey(pool) === store.view.pool);
  const items = [["", "Any pool"], ...pools.map((pool) => [poolKey(pool), `${pool.pool} (${pool.kind})`])];
  reconcile(select, items, ([value]) => value, ([value]) => h("option", { value }), (node, [, label]) => text(node, label));
  if (select.value !== store.view.pool) select.value = store.view.pool;
}

function draw() {
  const { tickets, matching, searched } = store.queue;
  const filtered = Boolean(store.view.query || store.view.pool);
  text(byId("queue-count"), filtered ? `${count(matching)} of ${count(store.waiting)}` : store.waiting ? count(store.waiting) : "");
  show(table, tickets.length > 0);
  show(empty, !filtered && tickets.length === 0);
  show(unmatched, filtered && tickets.length === 0);
  show(partly, filtered && store.waiting > SEARCHED);
  text(partly, `Only the first ${count(searched)} in the queue were searched.`);
  reconcile(body, tickets, (ticket) => ticket.id, make, change);
  keepOneStop(body);
  pager.draw(store.view.page, PAGE, matching);
}

function make() {
  const { node, cells } = makeRow(COLUMNS.map(([name]) => name));
  const p = (node.parts = {
    pos: h("span", {}),
    of: h("span", { class: "pos-of" }),
    command: h("button", { type: "button", class: "command", on: { click: () => showTicket(node.ticket) } }),
    models: h("span", { class: "model" }),
    who: h("span", { class: "who" }),
    extra: h("span", { class: "extra" }),
    chip: h("span", { class: "chip" }),
    until: timeNode(null, "left"),
    reason: h("p", { class: "reason" }),
    age: timeNode(null, "age"),
    estimate: h("span", { class: "estimate" }),
    bump: h("button", { type: "button", class: "icon-button", title: "Move to front", on: { click: () => actions.bump(node.ticket) } }, icon("front")),
    cancel: h("button", { type: "button", class: "icon-button", title: "Cancel", on: { click: () => actions.cancel(node.ticket) } }, icon("cancel")),
  });
  cells.pos.append(p.pos, p.of);
  cells.what.append(p.command, h("p", { class: "under" }, p.models, p.extra, p.who));
  cells.why.append(h("p", { class: "why-head" }, p.chip, p.until), p.reason);
  cells.age.append(p.age, p.estimate);
  cells.do.append(p.bump, p.cancel);
  return node;
}

function change(node, ticket) {
  node.ticket = ticket;
  const p = node.parts;
  const { reason } = ticket;
  text(p.pos, count(ticket.position));
  text(p.of, ticket.of ? `of ${count(ticket.of)}` : "");
  attr(p.of, "title", place(ticket));
  text(p.command, ticket.command || ticket.id);
  attr(p.command, "title", ticket.command);
  text(p.models, ticket.models.join(", ") || "no model");
  attr(p.models, "title", ticket.models.join(", "));
  text(p.who, who(ticket.holder, ticket.client));
  text(p.extra, extras(ticket));
  text(p.chip, reasonName(reason.code));
  attr(p.chip, "class", `chip ${chipClass(reason.code)}`);
  setTime(p.until, reason.until);
  text(p.reason, reason.text);
  attr(p.reason, "title", reason.text);
  attr(p.reason, "data-code", reason.code);
  setTime(p.age, ticket.queued_at);
  text(p.estimate, estimate(ticket.estimate_s) ?? "");
  show(p.bump, mayChange());
  show(p.cancel, mayChange());
  const name = ticket.command || ticket.id;
  attr(p.bump, "aria-label", `Move to the front: ${name}`);
  attr(p.cancel, "aria-label", `Cancel: ${name}`);
}

function extras({ project, priority, slots, gone }) {
  const parts = [];
  if (project !== "default") parts.push(project);
  if (priority) parts.push(`priority ${priority > 0 ? "+" : "−"}${Math.abs(priority)}`);
  if (slots > 1) parts.push(`${slots} slots`);
  if (gone) parts.push("process is gone");
  return parts.join(" · ");
}

export function chipClass(code) {
  if (["paused", "backoff", "budget"].includes(code)) return "paused";
  return code === "behind" || code === "cooling" ? "open" : "full";
}
