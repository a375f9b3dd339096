// The actions on pools, tickets, leases and backoffs. Each reports what it did, and offers to undo it where that is possible.
import { send } from "../state/api.js";
import { now } from "../base/clock.js";
import { confirm } from "../base/dialogs.js";
import { duration, place, setting, some, who, words } from "../base/format.js";
import { forgetQueue, readNow } from "../state/refresh.js";
import { store, update } from "../state/store.js";
import { say } from "../base/toasts.js";

/** Run an action and read the state again; a refusal is shown in the words of the service. @param {() => Promise<void>} action */
export async function attempt(action) {
  try {
    await action();
  } catch (error) {
    if (error.status === 401) update({ session: { ...store.session, may_change: false } });
    say(`Not done: ${error.message}.`, { bad: true });
  }
  forgetQueue();
  await readNow();
}

const started = (answer) => (answer.entered ? ` ${some(answer.entered, "agent")} started.` : "");
const named = (item) => item.command || item.id;
const short = (item) => (named(item).length > 60 ? `${named(item).slice(0, 58)}…` : named(item));

/** Pools of both kinds can have the same name. */
export const titled = (pool) => `${pool.pool} (${pool.kind})`;

// The queue.

export async function cancel(ticket) {
  const sure = await confirm({
    title: "Cancel this ticket?",
    text: `${who(ticket.holder, ticket.client)} is waiting at position ${place(ticket)}. It leaves the queue and loses its place.`,
    detail: named(ticket),
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

export async function release(lease) {
  const sure = await confirm({
    title: "Free this slot?",
    text: `${who(lease.holder, lease.client, lease.child_pid)} keeps running, but another agent can get its ${some(lease.slots, "slot")} at once, so more may run than the limit allows.`,
    detail: named(lease),
    yes: "Free the slot",
  });
  if (!sure) return;
  await attempt(async () => {
    const answer = await send("POST", `/v1/leases/${encodeURIComponent(lease.id)}/release`, { force: true });
    say(answer.released ? `Freed: ${short(lease)}${started(answer) && `.${started(answer)}`}` : `Had already ended: ${short(lease)}`);
  });
}

// Pools.

export function restore(pool) {
  return attempt(async () => {
    const answer = await send("POST", "/v1/restore", { pool: pool.pool, kind: pool.kind });
    say(`Restored: the limit of ${titled(pool)} is ${answer.cap ?? pool.auto_reduced_from} again.${started(answer)}`);
  });
}

export function pause(pool, forS = null) {
  return attempt(async () => {
    const body = { target: pool.pool, kind: pool.kind };
    await send("POST", "/v1/pause", forS === null ? body : { ...body, for_s: forS });
    const until = forS === null ? "until you resume it" : `for ${duration(forS * 1000)}`;
    say(`Paused ${titled(pool)} ${until}: no new agents start.`, { undo: () => resume(pool, false) });
  });
}

export function resume(pool, undoable = true) {
  const left = pool.paused_until ? Math.max(1, (Date.parse(pool.paused_until) - now()) / 1000) : null;
  return attempt(async () => {
    const answer = await send("POST", "/v1/resume", { target: pool.pool, kind: pool.kind });
    say(`Resumed ${titled(pool)}.${started(answer)}`, { undo: undoable ? () => pause(pool, left) : undefined });
  });
}

/** @param {number} cap */
export function setCap(pool, cap) {
  return attempt(async () => {
    const answer = await send("PUT", "/v1/caps", { selector: pool.selector, kind: pool.kind, cap });
    const undo = answer.was ? () => capBack(pool, answer.was) : undefined;
    say(`The cap of ${pool.selector} (${pool.kind}) is now ${answer.cap} (was ${capText(answer.was)}).${started(answer)}`, { undo });
  });
}

/** Remove the cap, whatever the config file says. */
export async function removeCap(pool) {
  const sure = await confirm({
    title: "Remove the cap?",
    text: `All agents waiting for ${pool.selector} (${pool.kind}) start at once, and nothing limits it any more. This also ends its pause and its automatic reduction.`,
    yes: "Remove the cap",
  });
  if (!sure) return;
  await attempt(async () => {
    const query = new URLSearchParams({ selector: pool.selector, kind: pool.kind });
    const answer = await send("DELETE", `/v1/caps?${query}`);
    const undo = answer.was ? () => capBack(pool, answer.was) : undefined;
    say(`${pool.selector} (${pool.kind}) is now unlimited (its cap was ${capText(answer.was)}).${started(answer)}`, { undo });
  });
}

/** Drop the cap that was set at run time. */
export function resetCap(pool) {
  return attempt(async () => {
    const answer = await send("POST", "/v1/caps/reset", { selector: pool.selector, kind: pool.kind });
    const text = answer.source ? `${capText(answer)} again, from the ${answer.source}` : "removed: nothing else caps it";
    const undo = answer.was ? () => capBack(pool, answer.was) : undefined;
    say(`The cap of ${pool.selector} (${pool.kind}) is ${text}.${started(answer)}`, { undo });
  });
}

const capText = (was) => (!was ? "none" : was.auto ? "automatic" : String(was.cap));

function capBack(pool, was) {
  return attempt(async () => {
    const cap = was.auto ? "auto" : was.cap;
    const answer = await send("PUT", "/v1/caps", { selector: pool.selector, kind: pool.kind, cap });
    say(`Undone: the cap of ${pool.selector} (${pool.kind}) is ${capText(was)} again.${started(answer)}`);
  });
}

export function setCooldown(pool, cooldownMs, undoable = true) {
  return attempt(async () => {
    const body = { selector: pool.selector, kind: pool.kind, cooldown_ms: cooldownMs };
    const answer = await send("PUT", "/v1/cooldown", body);
    const was = answer.was_ms;
    const undo = undoable && was !== null ? () => setCooldown(pool, was, false) : undefined;
    const before = was === null ? "" : ` (was ${setting(was)})`;
    say(`The cooldown of ${pool.selector} (${pool.kind}) is now ${setting(answer.cooldown_ms)}${before}.`, { undo });
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
