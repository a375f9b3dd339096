// The dialogs that change a pool: cap, cooldown, pause.
import * as actions from "./actions.js";
import { dialog, field } from "../base/dialogs.js";
import { h } from "../base/dom.js";
import { some } from "../base/format.js";
import { beliefDetails, beliefSentence } from "../limits/belief.js";
import { get } from "../state/api.js";

/** @type {[number | null, string][]} */
const PAUSES = [[null, "Until I resume it"], [300, "5 minutes"], [900, "15 minutes"], [3600, "1 hour"], [14_400, "4 hours"]];

/** Edit cap, reserve and cooldown; only changed values are sent. */
export async function editPool(pool) {
  const plan = await dialog({
    title: pool.selector,
    kicker: `Cap, reserve and cooldown, ${pool.kind}`,
    body: (close) => [explained(pool), form(pool, close)],
  });
  if (!plan) return;
  if (plan.act === "remove") return void (await actions.removeCap(pool));
  if (plan.act === "reset") return void (await actions.resetCap(pool));
  if (plan.cap !== undefined || plan.reserve !== undefined) await actions.setCap(pool, plan.cap ?? (pool.auto ? "auto" : pool.cap), plan.reserve);
  if (plan.cooldownMs !== undefined) await actions.setCooldown(pool, plan.cooldownMs);
}

/** What is believed about the limit, and why: as soon as it is read. */
function explained(pool) {
  const node = h("div", { class: "belief-box" });
  if (pool.on_429 !== "adapt") return node;
  get(`/v1/explain?${new URLSearchParams({ pool: pool.pool, kind: pool.kind })}`).then((said) => {
    if (said.proven === null) return;
    node.append(h("p", { class: "belief", text: beliefSentence(said) }),
      h("details", { class: "belief-more" }, h("summary", { text: "Why, and what would change it" }), ...beliefDetails(said)));
  }, () => {}); // the form works without it
  return node;
}

function form(pool, close) {
  const cap = number({ min: 1, max: 1_000_000, value: pool.cap ?? "", autofocus: true, name: "cap" });
  const cooldown = number({ min: 0, max: 86_400_000, value: pool.cooldown_ms, name: "cooldown" });
  const reserve = number({ min: 0, max: 1_000_000, value: pool.kept, name: "reserve" });
  const taken = pool.in_flight + pool.foreign;
  const submit = (event) => {
    event.preventDefault();
    const plan = {};
    if (cap.value !== "" && Number(cap.value) !== pool.cap) plan.cap = Number(cap.value);
    if (reserve.value !== "" && Number(reserve.value) !== pool.kept) plan.reserve = Number(reserve.value);
    if (cooldown.value !== "" && Number(cooldown.value) !== pool.cooldown_ms) plan.cooldownMs = Number(cooldown.value);
    close(Object.keys(plan).length ? plan : null);
  };
  const others = h("div", { class: "dialog-more" });
  if (pool.cap !== null) others.append(plain("Remove the cap…", () => close({ act: "remove" })));
  if (pool.source === "run time") others.append(plain("Reset to the config file", () => close({ act: "reset" })));
  const lowered = pool.auto_reduced ? ` It was reduced to ${pool.limit} after rate limits; a new cap ends the reduction.` : "";
  return h("form", { method: "dialog", on: { submit } },
    field("Cap: maximum slots in use at once", cap,
      `${some(taken, "slot")} in use now. After lowering the cap, running agents continue, and no new ones start until there is room.${lowered}`),
    field("Reserve: slots kept for interactive work", reserve, "Other requests leave them free; one slot is always left to them."),
    field("Cooldown in milliseconds", cooldown, "How long a released slot stays blocked. It applies to later releases."),
    others,
    h("div", { class: "dialog-foot" },
      h("button", { type: "button", class: "button", text: "Cancel", on: { click: () => close(null) } }),
      h("button", { type: "submit", class: "button primary", text: "Save" })));
}

function number(props) {
  return h("input", { type: "number", step: "1", inputmode: "numeric", required: props.name === "cooldown", ...props });
}

function plain(label, act) {
  return h("button", { type: "button", class: "link", text: label, on: { click: act } });
}

/** Choose how long, then pause. */
export async function pausePool(pool) {
  const name = "pause-for";
  const plan = await dialog({
    title: `Pause ${pool.pool}?`,
    body: (close) => {
      const choices = PAUSES.map(([seconds, label], place) => h("label", { class: "choice" },
        h("input", { type: "radio", name, value: String(seconds), checked: place === 0, autofocus: place === 0 }), label));
      const submit = (event) => {
        event.preventDefault();
        const chosen = new FormData(event.target).get(name);
        close({ forS: chosen === "null" ? null : Number(chosen) });
      };
      return [
        h("p", { text: `No new agents start (${pool.kind}). Running agents continue; waiting ones keep their place.` }),
        h("form", { method: "dialog", on: { submit } },
          h("fieldset", { class: "choices" }, h("legend", { class: "sr", text: "For how long" }), ...choices),
          h("div", { class: "dialog-foot" },
            h("button", { type: "button", class: "button", text: "Cancel", on: { click: () => close(null) } }),
            h("button", { type: "submit", class: "button danger", text: "Pause" }))),
      ];
    },
  });
  if (plan) await actions.pause(pool, plan.forS);
}
