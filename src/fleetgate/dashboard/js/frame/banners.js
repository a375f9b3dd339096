// The banners at the top: connection lost, store trouble, read-only, and notices about pools.
import * as actions from "../fleet/actions.js";
import { standing } from "../budgets/reading.js";
import { now } from "../base/clock.js";
import { attr, byId, h, reconcile, show, text } from "../base/dom.js";
import { duration, some } from "../base/format.js";
import { icon } from "../base/icons.js";
import { goTo } from "./pages.js";
import { mayChange, onChange, poolKey, store } from "../state/store.js";

const BLINK_MS = 900; // a stream that is back within this time is not mentioned

/** @type {() => void} */
let retryNow = () => {};

export function setUpBanners(retry) {
  retryNow = retry;
  onChange(["pools", "session", "connection", "trouble", "phase", "budgets", "route"], draw);
}

/** Draw the banners with the countdown; called every second. */
export function draw() {
  const { state, retryAt, lostAt } = store.connection;
  const cutOff = store.phase === "ready" && lostAt > 0 && Date.now() - lostAt > BLINK_MS;
  attr(document.documentElement, "data-stale", cutOff ? "true" : null);
  const banners = [];
  if (cutOff) {
    const left = Math.max(0, Math.ceil((retryAt - Date.now()) / 1000));
    const next = state === "connecting" ? "Reconnecting…" : left > 0 ? `Reconnecting in ${left} s.` : "Reconnecting…";
    banners.push({
      key: "cut-off", tone: "bad", icon: "offline", title: "The service is not responding.",
      text: `${next} This page shows the last known state; agents are not affected.`,
      button: "Try now", act: retryNow,
    });
  }
  if (store.trouble && !cutOff) banners.push({ key: "trouble", tone: "bad", icon: "warn", title: "The store has a problem.", text: store.trouble });
  if (store.phase === "ready" && !mayChange()) {
    banners.push({
      key: "read-only", tone: "info", icon: "info", title: "Read-only.",
      text: "To make changes from this browser, run this on the machine of the service:", code: "fleetgate open",
    });
  }
  for (const pool of store.pools.filter((each) => each.notice)) {
    banners.push({
      key: `notice ${poolKey(pool)}`, tone: "warn", icon: "warn", title: `${pool.pool} (${pool.kind})`,
      text: noticeOf(pool),
      button: mayChange() ? `Restore ${pool.auto_reduced_from}` : "", label: `Restore ${pool.auto_reduced_from} as the limit of ${pool.pool}`,
      act: () => actions.restore(pool),
    });
  }
  if (store.route.page === "fleet") {
    for (const budget of store.budgets.list.filter((each) => !each.rate && each.waiting && standing(each) === "empty")) {
      const resets = budget.resets_at ? ` It resets in ${duration(Date.parse(budget.resets_at) - now())}.` : "";
      banners.push({
        key: `budget ${budget.name}`, tone: "warn", icon: "warn", title: budget.name,
        text: `is used up: ${some(budget.waiting, "request")} waiting.${resets}`, button: "Budgets", act: () => goTo("budgets"),
      });
    }
  }
  reconcile(byId("banners"), banners, (banner) => banner.key, make, change);
}

function noticeOf(pool) {
  if (!pool.auto_reduced) return pool.notice;
  if (pool.on_429 === "adapt") return `was reduced to ${pool.limit} after a rate limit. Its cap is ${pool.auto_reduced_from}; it recovers automatically.`;
  return `was reduced to ${pool.limit} after a rate limit. Its cap is ${pool.auto_reduced_from}; it stays lower until you restore it.`;
}

function make() {
  const node = /** @type {any} */ (h("div", {}));
  const p = (node.parts = {
    icon: h("span", { class: "banner-icon" }),
    title: h("strong", {}),
    text: h("span", {}),
    code: h("code", {}),
    button: h("button", { type: "button", class: "button small", on: { click: () => node.banner.act() } }),
  });
  node.append(p.icon, h("p", {}, p.title, " ", p.text, " ", p.code), p.button);
  return node;
}

function change(node, banner) {
  const fresh = node.banner?.icon !== banner.icon;
  node.banner = banner;
  const p = node.parts;
  attr(node, "class", `banner ${banner.tone}`);
  attr(node, "data-key", banner.key);
  attr(node, "role", banner.tone === "info" ? "note" : "status");
  if (fresh) p.icon.replaceChildren(icon(banner.icon));
  text(p.title, banner.title);
  text(p.text, banner.text);
  text(p.code, banner.code ?? "");
  show(p.code, Boolean(banner.code));
  text(p.button, banner.button ?? "");
  attr(p.button, "aria-label", banner.label);
  show(p.button, Boolean(banner.button));
}
