// The table of waiting tickets: position, command, reason and age.
import { setTime, timeNode } from "../base/clock.js";
import { attr, h, reconcile, show, text } from "../base/dom.js";
import { count, estimate, place, reasonName, titleOf, who } from "../base/format.js";
import { icon } from "../base/icons.js";
import { keepOneStop } from "../base/roving.js";
import { makeRow, makeTable } from "../base/table.js";
import { projectAddress } from "../frame/pages.js";
import { mayChange, mayManage } from "../state/store.js";
import * as actions from "./actions.js";
import { showTicket } from "./ticket_details.js";

/** @type {[string, string][]} */
const COLUMNS = [["pos", "Position"], ["what", "Command"], ["why", "Reason"], ["age", "Waiting"], ["do", "(Actions)"]];

/** @param {string} label  for screen readers */
export function makeTicketTable(label) {
  const { table, body } = makeTable(label, COLUMNS);
  table.classList.add("tickets");
  return {
    node: table,
    /** @param {any[]} tickets */
    draw(tickets) {
      show(table, tickets.length > 0);
      reconcile(body, tickets, (ticket) => ticket.id, make, change);
      keepOneStop(body);
    },
  };
}

function make() {
  const { node, cells } = makeRow(COLUMNS.map(([name]) => name));
  const p = (node.parts = {
    pos: h("span", {}),
    of: h("span", { class: "pos-of" }),
    where: h("span", { class: "pos-where" }),
    command: h("button", { type: "button", class: "command", on: { click: () => showTicket(node.ticket) } }),
    models: h("span", { class: "model" }),
    who: h("span", { class: "who" }),
    project: h("a", { class: "project" }),
    extra: h("span", { class: "extra" }),
    chip: h("span", { class: "chip" }),
    until: timeNode(null, "left"),
    reason: h("p", { class: "reason" }),
    age: timeNode(null, "age"),
    estimate: h("span", { class: "estimate" }),
    bump: h("button", { type: "button", class: "icon-button", title: "Move to front", on: { click: () => actions.bump(node.ticket) } }, icon("front")),
    cancel: h("button", { type: "button", class: "icon-button", title: "Cancel", on: { click: () => actions.cancel(node.ticket) } }, icon("cancel")),
  });
  cells.pos.append(p.pos, " ", p.of, " ", p.where);
  cells.what.append(p.command, h("p", { class: "under" }, p.models, p.project, p.extra, p.who));
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
  text(p.where, ticket.of && ticket.pool ? `for ${shortPool(ticket.pool)}` : "");
  attr(p.pos.parentElement, "title", place(ticket));
  const name = titleOf(ticket);
  text(p.command, name);
  attr(p.command, "title", name);
  text(p.models, ticket.models.join(", ") || "no model");
  attr(p.models, "title", ticket.models.join(", "));
  text(p.who, who(ticket.holder, ticket.client));
  drawProject(p.project, ticket.project);
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
  show(p.cancel, mayManage());
  attr(p.bump, "aria-label", `Move to the front: ${name}`);
  attr(p.cancel, "aria-label", `Cancel: ${name}`);
}

/** The link to a project's page; the default project has none here. */
export function drawProject(node, project) {
  const named = project !== "default";
  text(node, named ? project : "");
  attr(node, "href", named ? projectAddress(project) : null);
}

/** A pool's name without its provider and its star, where that leaves something that tells it apart: claude-opus. */
const shortPool = (pool) => pool.replace(/^[^/]+\/(?=[^*])/, "").replace(/-\*$/, "");

function extras({ priority, slots, gone, session }) {
  const parts = session ? [`session ${session.slice(0, 8)}`] : [];
  if (priority) parts.push(`priority ${priority > 0 ? "+" : "−"}${Math.abs(priority)}`);
  if (slots > 1) parts.push(`${slots} slots`);
  if (gone) parts.push("process is gone");
  return parts.join(" · ");
}

export function chipClass(code) {
  if (["paused", "backoff", "budget"].includes(code)) return "paused";
  return code === "behind" || code === "cooling" ? "open" : "full";
}
