// What a person can do here. Each says what it did, and offers the way back where there is one.
import { send } from "./api.js";
import { now } from "./clock.js";
import { confirm } from "./dialogs.js";
import { duration, place, setting, some, who } from "./format.js";
import { forgetLine, readNow } from "./refresh.js";
import { store, update } from "./store.js";
import { say } from "./toasts.js";

/** Do it, then say so; a refusal is said as the service says it. @param {() => Promise<void>} doing */
export async function attempt(doing) {
  try {
    await doing();
  } catch (error) {
    if (error.status === 401) update({ session: { ...store.session, may_change: false } });
    say(`Not done: ${error.message}.`, { bad: true });
  }
  forgetLine();
  await readNow();
}

const entered = (answer) => (answer.entered ? ` ${some(answer.entered, "agent")} entered.` : "");
const named = (item) => item.command || item.id;
const short = (item) => (named(item).length > 60 ? `${named(item).slice(0, 58)}…` : named(item));

/** Pools of both kinds can have the same name. */
export const titled = (pool) => `${pool.pool} (${pool.kind})`;

// The line.

export async function cancel(ticket) {
  const sure = await confirm({
    title: "Take it out of the queue?",
    text: `${who(ticket.holder, ticket.client)} waits at position ${place(ticket)}. It is told that it was cancelled, and loses its place.`,
    detail: named(ticket),
    yes: "Cancel the ticket",
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
      say(`Went to the front and entered: ${short(ticket)}`);
    } else {
      const undo = () => setPriority(ticket, ticket.priority, false);
      say(`At position ${place(answer)} now: ${short(ticket)}`, { undo });
    }
  });
}

export function setPriority(ticket, priority, undoable = true) {
  return attempt(async () => {
    const answer = await send("POST", `/v1/tickets/${encodeURIComponent(ticket.id)}/bump`, { priority });
    const undo = undoable ? () => setPriority(ticket, ticket.priority, false) : undefined;
    if (answer.entered) say(`Priority ${priority}, and entered: ${short(ticket)}`);
    else say(`Priority ${priority}, position ${place(answer)}: ${short(ticket)}`, { undo });
  });
}

// Leases.

export async function release(lease) {
  const sure = await confirm({
    title: "Take the lease back?",
    text: `${who(lease.holder, lease.client, lease.child_pid)} keeps running, but its ${some(lease.slots, "slot")} can be lent to somebody else at once, so more may run than the limit allows.`,
    detail: named(lease),
    yes: "Take it back",
  });
  if (!sure) return;
  await attempt(async () => {
    const answer = await send("POST", `/v1/leases/${encodeURIComponent(lease.id)}/release`, { force: true });
    say(answer.released ? `Taken back: ${short(lease)}${entered(answer) && `.${entered(answer)}`}` : `It had ended already: ${short(lease)}`);
  });
}

// Pools.

export function restore(pool) {
  return attempt(async () => {
    const answer = await send("POST", "/v1/restore", { pool: pool.pool, kind: pool.kind });
    say(`Restored: the limit of ${titled(pool)} is ${answer.cap ?? pool.auto_reduced_from} again.${entered(answer)}`);
  });
}

export function pause(pool, forS = null) {
  return attempt(async () => {
    const body = { target: pool.pool, kind: pool.kind };
    await send("POST", "/v1/pause", forS === null ? body : { ...body, for_s: forS });
    const until = forS === null ? "until somebody resumes it" : `for ${duration(forS * 1000)}`;
    say(`Paused ${titled(pool)} ${until}: nobody new enters.`, { undo: () => resume(pool, false) });
  });
}

export function resume(pool, undoable = true) {
  const left = pool.paused_until ? Math.max(1, (Date.parse(pool.paused_until) - now()) / 1000) : null;
  return attempt(async () => {
    const answer = await send("POST", "/v1/resume", { target: pool.pool, kind: pool.kind });
    say(`Resumed ${titled(pool)}.${entered(answer)}`, { undo: undoable ? () => pause(pool, left) : undefined });
  });
}

/** @param {number} cap */
export function setCap(pool, cap) {
  return attempt(async () => {
    const answer = await send("PUT", "/v1/caps", { selector: pool.selector, kind: pool.kind, cap });
    const undo = answer.was ? () => capBack(pool, answer.was) : undefined;
    say(`The cap of ${pool.selector} (${pool.kind}) is ${answer.cap}, it was ${told(answer.was)}.${entered(answer)}`, { undo });
  });
}

/** No cap at all, whatever the file says. */
export async function removeCap(pool) {
  const sure = await confirm({
    title: "Remove the cap?",
    text: `Everybody who waits for ${pool.selector} (${pool.kind}) enters at once, and nothing limits it any more. Its pause and its reduction are forgotten.`,
    yes: "Remove the cap",
  });
  if (!sure) return;
  await attempt(async () => {
    const query = new URLSearchParams({ selector: pool.selector, kind: pool.kind });
    const answer = await send("DELETE", `/v1/caps?${query}`);
    const undo = answer.was ? () => capBack(pool, answer.was) : undefined;
    say(`${pool.selector} (${pool.kind}) is unlimited now, its cap was ${told(answer.was)}.${entered(answer)}`, { undo });
  });
}

/** Forget what was set at run time. */
export function resetCap(pool) {
  return attempt(async () => {
    const answer = await send("POST", "/v1/caps/reset", { selector: pool.selector, kind: pool.kind });
    const now_ = answer.source ? `${told(answer)} again, from the ${answer.source}` : "unlimited: nothing else caps it";
    const undo = answer.was ? () => capBack(pool, answer.was) : undefined;
    say(`The cap of ${pool.selector} (${pool.kind}) is ${now_}.${entered(answer)}`, { undo });
  });
}

const told = (was) => (!was ? "none" : was.auto ? "automatic" : String(was.cap));

function capBack(pool, was) {
  return attempt(async () => {
    const cap = was.auto ? "auto" : was.cap;
    const answer = await send("PUT", "/v1/caps", { selector: pool.selector, kind: pool.kind, cap });
    say(`Undone: the cap of ${pool.selector} (${pool.kind}) is ${told(was)} again.${entered(answer)}`);
  });
}

export function setCooldown(pool, cooldownMs, undoable = true) {
  return attempt(async () => {
    const body = { selector: pool.selector, kind: pool.kind, cooldown_ms: cooldownMs };
    const answer = await send("PUT", "/v1/cooldown", body);
    const was = answer.was_ms;
    const undo = undoable && was !== null ? () => setCooldown(pool, was, false) : undefined;
    const before = was === null ? "" : `, it was ${setting(was)}`;
    say(`A slot of ${pool.selector} (${pool.kind}) now cools down for ${setting(answer.cooldown_ms)}${before}.`, { undo });
  });
}

// Backoffs.

export async function clearBackoff(backoff) {
  const left = Date.parse(backoff.until) - now();
  const sure = await confirm({
    title: "Use it again now?",
    text: `${backoff.key} is backed off for another ${duration(left, true)} because of ${backoff.reason}. If the provider still refuses, it is backed off anew.`,
    yes: "Clear the backoff",
  });
  if (!sure) return;
  await attempt(async () => {
    const query = new URLSearchParams({ key: backoff.key });
    const answer = await send("DELETE", `/v1/backoffs?${query}`);
    say(`Cleared the backoff of ${backoff.key}.${entered(answer)}`, { undo: () => backOff(backoff) });
  });
}

function backOff(backoff) {
  return attempt(async () => {
    const left = Math.max(1, Math.round((Date.parse(backoff.until) - now()) / 1000));
    await send("PUT", "/v1/backoffs", { key: backoff.key, reason: backoff.reason, for_s: left });
    say(`Undone: ${backoff.key} is backed off for ${duration(left * 1000, true)} again.`);
  });
}
