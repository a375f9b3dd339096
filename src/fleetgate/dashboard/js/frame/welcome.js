// The welcome card of an empty gate with the first commands to try, and the page for a service that cannot be read.
import { signInWithKey } from "../access/dialogs.js";
import { byId, h, show, text } from "../base/dom.js";
import { icon } from "../base/icons.js";
import { readNow } from "../state/refresh.js";
import { onChange, store } from "../state/store.js";
import { say } from "../base/toasts.js";

const FIRST = [
  ["Run an agent", "fleetgate run -m anthropic/claude-opus-4-6 -- opencode run \"fix the tests\""],
  ["Limit how many run at once", "fleetgate cap set 'anthropic/claude-opus-*' 4"],
  ["Check for a free slot before delegating", "fleetgate capacity -m anthropic/claude-opus-4-6"],
];

export function setUpWelcome() {
  byId("welcome").append(
    h("h2", { id: "welcome-title", text: "No agents yet" }),
    h("p", { text: "They appear here automatically. To start, run one of these on this machine:" }),
    h("ol", { class: "first" }, ...FIRST.map(([what, command]) => h("li", {}, h("p", { text: what }), commandLine(command)))),
  );
  onChange(["phase", "running", "waiting", "backoffs", "problem", "events"], draw);
}

function commandLine(command) {
  const copy = h("button", { type: "button", class: "icon-button", "aria-label": `Copy: ${command}`, title: "Copy" }, icon("copy"));
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(command);
      say("Copied.");
    } catch {
      say("This browser does not allow copying: select the text instead.", { bad: true });
    }
  });
  return h("div", { class: "typed" }, h("code", { text: command }), copy);
}

function draw() {
  const idle = store.phase === "ready" && store.running === 0 && store.waiting === 0 && store.backoffs.length === 0;
  document.documentElement.dataset.phase = store.phase;
  show(byId("welcome"), idle);
  show(byId("columns"), !idle || store.events.length > 0);
  show(byId("problem"), store.phase === "error");
  if (store.phase === "error" && store.problem) drawProblem(store.problem);
}

function drawProblem({ status, error }) {
  const signIn = status === 401;
  text(byId("problem-title"), signIn ? "This browser is not signed in" : status === 0 ? "The service is not responding" : "Something is wrong");
  text(byId("problem-text"), signIn
    ? "On this address everything needs a sign-in. Sign in with an access key, or run this on the machine of the service and open the link that it prints:"
    : status === 0 ? "Is it running? This page retries every few seconds. To start it:" : `The service reports: ${error}. This page retries every few seconds.`);
  const actions = byId("problem-actions");
  const command = signIn ? "fleetgate open --print" : status === 0 ? "fleetgate serve" : "";
  if (actions.dataset.command === command) return;
  actions.dataset.command = command;
  const retry = h("button", { type: "button", class: "button", text: "Try again", on: { click: () => readNow() } });
  const withKey = signIn ? [h("button", { type: "button", class: "button", text: "Sign in with a key…", on: { click: () => signInWithKey() } })] : [];
  actions.replaceChildren(...(command ? [commandLine(command)] : []), ...withKey, retry);
}
