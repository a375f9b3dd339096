// The actions on pools. Each reports what it did, and offers to undo it where that is possible.
import { now } from "../base/clock.js";
import { confirm } from "../base/dialogs.js";
import { duration, setting } from "../base/format.js";
import { say } from "../base/toasts.js";
import { attempt, started } from "../frame/attempt.js";
import { send } from "../state/api.js";

/** Pools of both kinds can have the same name. */
export const titled = (pool) => `${pool.pool} (${pool.kind})`;

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

/** @param {number | "auto"} cap @param {number} [reserve] slots kept for interactive work */
export function setCap(pool, cap, reserve) {
  return attempt(async () => {
    const body = { selector: pool.selector, kind: pool.kind, cap };
    const answer = await send("PUT", "/v1/caps", reserve === undefined ? body : { ...body, reserve });
    const undo = answer.was ? () => capBack(pool, answer.was, reserve === undefined ? undefined : pool.kept) : undefined;
    const kept = reserve === undefined ? "" : `, ${answer.reserve ?? 0} of it kept for interactive work`;
    say(`The cap of ${pool.selector} (${pool.kind}) is now ${answer.cap ?? "auto"}${kept} (was ${capText(answer.was)}).${started(answer)}`, { undo });
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

function capBack(pool, was, reserve) {
  return attempt(async () => {
    const body = { selector: pool.selector, kind: pool.kind, cap: was.auto ? "auto" : was.cap };
    const answer = await send("PUT", "/v1/caps", reserve === undefined ? body : { ...body, reserve });
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
