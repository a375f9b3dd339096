// The dialogs with the details of one ticket or lease, and the actions on it.
import * as actions from "./actions.js";
import { timeNode } from "../base/clock.js";
import { get } from "../state/api.js";
import { dialog, facts, field } from "../base/dialogs.js";
import { h } from "../base/dom.js";
import { duration, estimate, exact, place, reasonName, some, who } from "../base/format.js";
import { showJob } from "../jobs/details.js";
import { amountOf, spentText } from "../base/money.js";
import { mayChange } from "../state/store.js";

export async function showTicket(ticket) {
  const { reason } = ticket;
  const act = await dialog({
    title: ticket.command || ticket.id,
    kicker: `Ticket ${ticket.id}, position ${place(ticket)}`,
    wide: true,
    body: (close) => [
      facts([
        ["Reason", `${reasonName(reason.code)}: ${reason.text}`],
        ["Until", moment(reason.until, "left")],
        ["Blocked by", reason.pools.join(", ")],
        ["Budget", reason.budget ? h("a", { href: "#/budgets", text: reason.budget, on: { click: () => close(null) } }) : null],
        ["Left in it", reason.budget ? leftText(reason) : null],
        ["Expected start", estimate(ticket.estimate_s)],
        ["Models", ticket.models.join(", ")],
        ["Needs", `${some(ticket.slots, "slot")}, ${ticket.kind}`],
        ["Priority", String(ticket.priority)],
        ["Project", ticket.project],
        ["Holder", who(ticket.holder, ticket.client)],
        ["Role", ticket.role],
        ["Key", ticket.key],
        ["Waiting since", moment(ticket.queued_at, "ago")],
        ["Age counts from", ticket.since === ticket.queued_at ? null : moment(ticket.since, "ago")],
        ["Expires", moment(ticket.expires_at, "left")],
      ]),
      mayChange() ? ticketActions(ticket, close) : h("span", { hidden: true }),
    ],
  });
  if (act) await act();
}

function leftText({ budget, left }) {
  const unit = budget.split(" ").at(-1).split("/")[0];
  return left < 0 ? `nothing, ${amountOf(-left, unit)} more than allowed are used` : amountOf(left, unit);
}

function ticketActions(ticket, close) {
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
      h("button", { type: "button", class: "button danger", text: "Cancel the ticket…", on: { click: () => close(() => actions.cancel(ticket)) } }),
      h("button", { type: "button", class: "button primary", text: "Move to front", on: { click: () => close(() => actions.bump(ticket)) } })));
}

export async function showLease(lease) {
  const act = await dialog({
    title: lease.command || lease.id,
    kicker: `Lease ${lease.id}`,
    wide: true,
    body: (close) => [
      facts([
        ["Model", lease.model],
        ["Holds", `${some(lease.slots, "slot")}, ${lease.kind}`],
        ["Pools", lease.pools.join(", ")],
        ["Project", lease.project],
        ["Holder", who(lease.holder, lease.client)],
        ["Agent process", lease.child_pid === null ? null : String(lease.child_pid)],
        ["Role", lease.role],
        ["Key", lease.key],
        ["Running since", moment(lease.granted_at, "ago")],
        ["Used so far", spentText(lease.usage)?.all ?? null],
        ["Waited before", duration(lease.waited_s * 1000, true)],
        ["Slot freed in", moment(lease.ends_at, "left")],
        ["Renewal due in", moment(lease.renew_by, "left")],
      ]),
      leaseActions(lease, close),
    ],
  });
  if (act) await act();
}

function leaseActions(lease, close) {
  const foot = h("div", { class: "dialog-foot" });
  if (mayChange()) foot.append(h("button", { type: "button", class: "button danger", text: "Free the slot…", on: { click: () => close(() => actions.release(lease)) } }));
  // A job and its lease have the same id.
  if (lease.kind === "agents") get(`/v1/jobs/${encodeURIComponent(lease.id)}`).then((job) => {
    foot.append(h("button", { type: "button", class: "button", text: "Show the job", on: { click: () => close(() => showJob(job)) } }));
  }, () => {});
  return foot;
}

/** A time, relative and exact. */
function moment(iso, mode) {
  return iso ? h("span", {}, timeNode(iso, mode), h("span", { class: "exact", text: exact(iso) })) : null;
}
