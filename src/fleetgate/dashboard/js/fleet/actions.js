// The actions on tickets, leases and backoffs. Each reports what it did, and offers to undo it where that is possible.
import { now } from "../base/clock.js";
import { confirm } from "../base/dialogs.js";
import { duration, place, some, titleOf, who, words } from "../base/format.js";
import { say } from "../base/toasts.js";
import { attempt, started } from "../frame/attempt.js";
import { send } from "../state/api.js";

const short = (item) => (titleOf(item).length > 60 ? `${titleOf(item).slice(0, 58)}…` : titleOf(item));

// The queue.

export async function cancel(ticket) {
  const sure = await confirm({
    title: "Cancel this ticket?",
    text: `${who(ticket.holder, ticket.client)} is waiting at position ${place(ticket)}. It leaves the queue and loses its place.`,
    detail: titleOf(ticket),
    yes: "Cancel the ticket",
    no: "Keep it",
  });
  if (!sure) return;
  await attempt(async () => {
    await send("DELETE", `/v1/tickets/${encodeURIComponent(ticket.id)}`);
    say(`Cancelled: ${short(ticket)}`);
  });
}

export function bump(ticket) {
  return attempt(async () => {
    const answer = await send("POST", `/v1/tickets/${encodeURIComponent(ticket.id)}/bump`, {});
    if (answer.entered) {
      say(`Moved to the front and started: ${short(ticket)}`);
    } else {
      const undo = () => setPriority(ticket, ticket.priority, false);
      say(`Now at position ${place(answer)}: ${short(ticket)}`, { undo });
    }
  });
}

export function setPriority(ticket, priority, undoable = true) {
  return attempt(async () => {
    const answer = await send("POST", `/v1/tickets/${encodeURIComponent(ticket.id)}/bump`, { priority });
    const undo = undoable ? () => setPriority(ticket, ticket.priority, false) : undefined;
    if (answer.entered) say(`Priority ${priority}, started: ${short(ticket)}`);
    else say(`Priority ${priority}, position ${place(answer)}: ${short(ticket)}`, { undo });
  });
}

// Leases.

export async function stop(lease) {
  const sure = await confirm({
    title: "Stop this agent?",
    text: `${who(lease.holder, lease.client, lease.child_pid)} and all that it started are asked to stop, and killed after 10 seconds. Its ${some(lease.slots, "slot")} ${lease.slots === 1 ? "is" : "are"} free when they are gone.`,
    detail: titleOf(lease),
    yes: "Stop the agent",
  });
  if (!sure) return;
  await attempt(async () => {
    await send("POST", `/v1/leases/${encodeURIComponent(lease.id)}/stop`, {});
    say(`Stopping: ${short(lease)}`);
  });
}

export async function release(lease) {
  const sure = await confirm({
    title: "Free this slot?",
    text: `${who(lease.holder, lease.client, lease.child_pid)} keeps running, but another agent can get its ${some(lease.slots, "slot")} at once, so more may run than the limit allows.`,
    detail: titleOf(lease),
    yes: "Free the slot",
  });
  if (!sure) return;
  await attempt(async () => {
    const answer = await send("POST", `/v1/leases/${encodeURIComponent(lease.id)}/release`, { force: true });
    say(answer.released ? `Freed: ${short(lease)}${started(answer) && `.${started(answer)}`}` : `Had already ended: ${short(lease)}`);
  });
}

// Backoffs.

export async function clearBackoff(backoff) {
  const left = Date.parse(backoff.until) - now();
  const sure = await confirm({
    title: "Use it again now?",
    text: `${backoff.key} is backed off for another ${duration(left, true)} (${words(backoff.reason)}). If the provider still refuses it, it is backed off again.`,
    yes: "Clear the backoff",
  });
  if (!sure) return;
  await attempt(async () => {
    const query = new URLSearchParams({ key: backoff.key });
    const answer = await send("DELETE", `/v1/backoffs?${query}`);
    say(`Cleared the backoff of ${backoff.key}.${started(answer)}`, { undo: () => backOff(backoff) });
  });
}

function backOff(backoff) {
  return attempt(async () => {
    const left = Math.max(1, Math.round((Date.parse(backoff.until) - now()) / 1000));
    await send("PUT", "/v1/backoffs", { key: backoff.key, reason: backoff.reason, for_s: left });
    say(`Undone: ${backoff.key} is backed off for ${duration(left * 1000, true)} again.`);
  });
}
