// The banners at the top of every page: connection lost, store trouble, read-only.
import { signInWithKey } from "../access/dialogs.js";
import { attr, byId, h, reconcile, show, text } from "../base/dom.js";
import { icon } from "../base/icons.js";
import { isOfProject, mayChange, onChange, store } from "../state/store.js";

const BLINK_MS = 900; // a stream that is back within this time is not mentioned

/** @type {() => void} */
let retryNow = () => {};

export function setUpBanners(retry) {
  retryNow = retry;
  onChange(["session", "connection", "trouble", "phase"], draw);
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
  if (store.phase === "ready" && !mayChange()) banners.push(readOnly());
  reconcile(byId("banners"), banners, (banner) => banner.key, make, change);
}

/** Why nothing can be changed: the role of a key or user, or no sign-in. */
function readOnly() {
  const { key, user, role } = store.session ?? {};
  if (isOfProject()) {
    return { key: "read-only", tone: "info", icon: "info", title: `Project ${store.session.project}.`, text: `The key ${key} has the role agent: it sees the requests, jobs and usage of this project, and may cancel and stop them.` };
  }
  const common = { key: "read-only", tone: "info", icon: "info", title: "Read-only." };
  if (key || user) return { ...common, text: `${key ? `The key ${key}` : user} has the role ${role}. Changes need the role operator or admin.` };
  return {
    ...common, text: "To make changes from this browser, sign in with a key, or run this on the machine of the service:", code: "fleetgate open",
    button: "Sign in with a key…", act: signInWithKey,
  };
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
