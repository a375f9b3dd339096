// The dialogs of access keys: sign in with one, create, rotate and remove one. A new key is shown once.
import { confirm, dialog, field } from "../base/dialogs.js";
import { h } from "../base/dom.js";
import { say } from "../base/toasts.js";
import { attempt } from "../frame/attempt.js";
import { send } from "../state/api.js";
import * as session from "../state/session.js";
import { keysReader } from "./reading.js";

/** @type {[string, string][]} */
const ROLES = [
  ["agent", "agent: works for one project"], ["viewer", "viewer: reads everything"],
  ["operator", "operator: manages caps, queue and jobs"], ["admin", "admin: everything, also keys"],
];
/** @type {[string, string][]} */
const CLASSES = [["", "as each request says"], ["interactive", "interactive"], ["normal", "normal"], ["batch", "batch"]];

const path = (name) => `/v1/keys/${encodeURIComponent(name)}`;

/** Sign this browser in with an access key. */
export async function signInWithKey() {
  await dialog({
    title: "Sign in with an access key",
    body: (close) => {
      const key = /** @type {HTMLInputElement} */ (h("input", { class: "key-field", type: "password", name: "key", required: true, autofocus: true, autocomplete: "off", spellcheck: "false", maxlength: 200 }));
      const wrong = h("p", { class: "hint wrong", role: "alert" });
      const submit = async (event) => {
        event.preventDefault();
        try {
          const { secret } = await send("POST", "/v1/session", { key: key.value.trim() });
          close(null);
          session.begin(secret);
        } catch (error) {
          wrong.textContent = `Not signed in: ${error.message}.`;
          key.select();
        }
      };
      return [form(submit, close, "Sign in", field("Access key", key, "It begins with fgk_. The key of a viewer, an operator or an admin."), wrong)];
    },
  });
}

/** Create a key, and show it. */
export async function newKey() {
  const plan = await dialog({
    title: "New access key",
    body: (close) => {
      const input = (name, more = {}) => h("input", { class: "key-field", name, autocomplete: "off", spellcheck: "false", ...more });
      const parts = {
        name: input("name", { required: true, autofocus: true, maxlength: 40, pattern: "[A-Za-z0-9_\\-]+" }),
        role: select("role", ROLES, "agent"),
        project: input("project", { maxlength: 100, required: true }),
        work_class: select("class", CLASSES, ""),
        max_running: input("max_running", { type: "number", min: 1, max: 1_000_000, inputmode: "numeric" }),
        budget: input("budget", { type: "number", min: 0.01, step: "any", inputmode: "decimal" }),
        expires: input("expires", { placeholder: "90d" }),
      };
      parts.role.addEventListener("change", () => { parts.project.required = parts.role.value === "agent"; });
      const submit = (event) => {
        event.preventDefault();
        const said = Object.fromEntries(Object.entries(parts).map(([name, node]) => [name, node.value.trim()]));
        close({
          name: said.name, role: said.role, project: said.project,
          ...(said.work_class ? { class: said.work_class } : {}),
          ...(said.max_running ? { max_running: Number(said.max_running) } : {}),
          ...(said.budget ? { budgets: [`usd=${said.budget}/day`] } : {}),
          ...(said.expires ? { expires: said.expires } : {}),
        });
      };
      return [form(submit, close, "Create",
        field("Name", parts.name, "Letters, digits, - and _. The history shows it."),
        field("Role", parts.role),
        field("Project", parts.project, "The project of all its requests. An agent needs one."),
        field("Class", parts.work_class),
        field("At once", parts.max_running, "How many agents, and how many calls, it may run at once. Empty: no limit of its own."),
        field("Dollars per day", parts.budget, "Empty: no budget of its own. Other budgets: fleetgate budget set key:NAME"),
        field("Valid for", parts.expires, "A duration such as 90d. Empty: for ever."))];
    },
  });
  if (plan) await act(async () => showOnce(await send("POST", "/v1/keys", plan), "Created"));
}

export async function rotateKey({ name }) {
  const sure = await confirm({
    title: "Rotate the key?",
    text: "There will be a new key with the same name and rights. The old one is worth nothing at once, and browsers that it signed in are signed out.",
    detail: name, yes: "Rotate the key",
  });
  if (sure) await act(async () => showOnce(await send("POST", `${path(name)}/rotate`, {}), "Rotated"));
}

export async function removeKey({ name, running, waiting }) {
  const left = running || waiting ? ` What it has running (${running}) and waiting (${waiting}) continues.` : "";
  const sure = await confirm({
    title: "Remove the key?",
    text: `It is worth nothing at once, and its own caps and budgets that were set at run time end.${left} This cannot be undone.`,
    detail: name, yes: "Remove the key",
  });
  if (!sure) return;
  await act(async () => {
    await send("DELETE", path(name));
    say(`Removed the key ${name}.`);
  });
}

function act(action) {
  return attempt(async () => {
    try {
      await action();
    } finally {
      keysReader.readNow();
    }
  });
}

/** The only time that a key is shown. It is not awaited: the page goes on behind it. */
function showOnce({ name, key }, done) {
  const shown = /** @type {HTMLInputElement} */ (h("input", { class: "once", readonly: true, autocomplete: "off", spellcheck: "false" }));
  shown.value = key;
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(key);
      say("Copied.");
    } catch {
      shown.select();
      say("This browser does not allow copying: the key is selected, press Ctrl-C.", { bad: true });
    }
  };
  dialog({
    title: name,
    kicker: `${done} access key`,
    body: (close) => [
      field("The key", shown, "This is the only time it is shown. Keep it where only its user can read it."),
      h("div", { class: "dialog-foot" },
        h("button", { type: "button", class: "button", text: "Copy", autofocus: true, on: { click: copy } }),
        h("button", { type: "button", class: "button primary", text: "Done", on: { click: () => close(null) } })),
    ],
  }).then(() => { shown.value = ""; });
}

function form(submit, close, yes, ...fields) {
  return h("form", { method: "dialog", on: { submit } }, ...fields, h("div", { class: "dialog-foot" },
    h("button", { type: "button", class: "button", text: "Cancel", on: { click: () => close(null) } }),
    h("button", { type: "submit", class: "button primary", text: yes })));
}

function select(name, items, chosen) {
  return h("select", { name }, ...items.map(([value, label]) => h("option", { value, text: label, selected: value === chosen })));
}
