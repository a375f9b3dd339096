// The dialog with the details of one ticket, and the actions on it.
import { momentNode } from "../base/clock.js";
import { dialog, facts, field } from "../base/dialogs.js";
import { h } from "../base/dom.js";
import { estimate, place, reasonName, some, titleOf, who } from "../base/format.js";
import { amountOf } from "../base/money.js";
import { eventsAddress, itemAddress, nameInAddress, poolAddress, projectAddress } from "../frame/pages.js";
import { mayChange, mayManage, store } from "../state/store.js";
import * as actions from "./actions.js";

export async function showTicket(ticket) {
  const { reason } = ticket;
  const leaveAddress = nameInAddress(itemAddress("tickets", ticket.id));
  const act = await dialog({
    title: titleOf(ticket),
    kicker: `Ticket ${ticket.id}, position ${place(ticket)}`,
    wide: true,
    body: (close) => [
      facts([
        ["Reason", `${reasonName(reason.code)}: ${reason.text}`],
        ["Until", momentNode(reason.until, "left")],
        ["Blocked by", poolLinks(reason.pools, ticket.kind)],
        ["Budget", reason.budget ? h("a", { href: "#/budgets", text: reason.budget }) : null],
        ["Left in it", reason.budget ? leftText(reason) : null],
        ["Expected start", estimate(ticket.estimate_s)],
        ["Models", ticket.models.join(", ")],
        ["Needs", `${some(ticket.slots, "slot")}, ${ticket.kind}`],
        ["Priority", String(ticket.priority)],
        ["Project", projectLink(ticket.project)],
        ["Holder", who(ticket.holder, ticket.client)],
        ["Session", ticket.session],
        ["Role", ticket.role],
        ["Key", ticket.key],
        ["Access key", ticket.access_key],
        ["Waiting since", momentNode(ticket.queued_at, "ago")],
        ["Age counts from", ticket.since === ticket.queued_at ? null : momentNode(ticket.since, "ago")],
        ["Expires", momentNode(ticket.expires_at, "left")],
        ["Events", eventsLink(ticket.id)],
      ]),
      mayManage() ? ticketActions(ticket, close) : h("span", { hidden: true }),
    ],
  });
  leaveAddress();
  if (act) await act();
}

/** The names of pools, with links to their pages. @param {string[]} names @param {string} kind */
export function poolLinks(names, kind) {
  if (!names.length) return null;
  const links = names.map((pool) => (store.pools.some((each) => each.pool === pool && each.kind === kind) ? h("a", { href: poolAddress({ pool, kind }), text: pool }) : h("span", { text: pool })));
  return h("span", { class: "links" }, ...links);
}

/** A project's name, with a link to its page. */
export const projectLink = (project) => h("a", { href: projectAddress(project), text: project });

/** The link to all events about an ID. */
export const eventsLink = (id) => h("a", { href: eventsAddress(id), text: `All events of ${id}` });

function leftText({ budget, left }) {
  const unit = budget.split(" ").at(-1).split("/")[0];
  return left < 0 ? `nothing, ${amountOf(-left, unit)} more than allowed are used` : amountOf(left, unit);
}

function ticketActions(ticket, close) {
  const cancel = h("button", { type: "button", class: "button danger", text: "Cancel the ticket…", on: { click: () => close(() => actions.cancel(ticket)) } });
  if (!mayChange()) return h("div", { class: "dialog-foot" }, cancel);
  const priority = h("input", { type: "number", min: -100, max: 100, step: 1, required: true, value: ticket.priority, inputmode: "numeric" });
  const submit = (event) => {
    event.preventDefault();
    const value = Number(priority.value);
    close(value === ticket.priority ? null : () => actions.setPriority(ticket, value));
  };
  return h("form", { method: "dialog", class: "dialog-act", on: { submit } },
    h("div", { class: "inline-field" }, field("Priority", priority, "−100 to 100; each point counts as 12 s of waiting"),
      h("button", { type: "submit", class: "button", text: "Set priority" })),
    h("div", { class: "dialog-foot" },
      cancel,
      h("button", { type: "button", class: "button primary", text: "Move to front", on: { click: () => close(() => actions.bump(ticket)) } })));
}

