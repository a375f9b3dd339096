// Nothing runs and nothing waits: what to type first. And what to do when there is nothing to show at all.
import { byId, h, show, text } from "./dom.js";
import { icon } from "./icons.js";
import { readNow } from "./refresh.js";
import { onChange, store } from "./store.js";
import { say } from "./toasts.js";

const FIRST = [
  ["Run an agent under the gate", "fleetgate run -m anthropic/claude-opus-4-6 -- opencode run \"fix the tests\""],
  ["Say how many may run at once", "fleetgate cap set 'anthropic/claude-opus-*' 4"],
  ["Ask before you delegate", "fleetgate capacity -m anthropic/claude-opus-4-6"],
];

export function setUpWelcome() {
  byId("welcome").append(
    h("h2", { id: "welcome-title", text: "Nothing runs and nobody waits" }),
    h("p", { text: "Agents that pass the gate appear here by themselves. To begin, type one of these in a terminal of this machine:" }),
    h("ol", { class: "first" }, ...FIRST.map(([what, command]) => h("li", {}, h("p", { text: what }), typed(command)))),
  );
  onChange(["phase", "running", "waiting", "backoffs", "problem", "events"], draw);
}

function typed(command) {
  const copy = h("button", { type: "button", class: "icon-button", "aria-label": `Copy: ${command}`, title: "Copy" }, icon("copy"));
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(command);
      say("Copied.");
    } catch {
      say("This browser does not let the page copy: select the text.", { bad: true });
    }
  });
  return h("div", { class: "typed" }, h("code", { text: command }), copy);
}

function draw() {
  const idle = store.phase === "ready" && store.running === 0 && store.waiting === 0 && store.backoffs.length === 0;
  document.documentElement.dataset.phase = store.phase;
  show(byId("welcome"), idle);
  show(byId("columns"), !idle || store.events.length > 0);
  show(byId("content"), store.phase !== "error");
  show(byId("problem"), store.phase === "error");
  if (store.phase === "error" && store.problem) drawProblem(store.problem);
}

function drawProblem({ status, error }) {
  const signIn = status === 401;
  text(byId("problem-title"), signIn ? "This browser is not signed in" : status === 0 ? "The service does not answer" : "Something is wrong");
  text(byId("problem-text"), signIn
    ? "On this address everything needs the token. Type this on the machine of the service, and open the link that it prints:"
    : status === 0 ? "Is it running? It is tried again every few seconds. To start it:" : `The service says: ${error}. It is asked again every few seconds.`);
  const actions = byId("problem-actions");
  const command = signIn ? "fleetgate open --print" : status === 0 ? "fleetgate serve" : "";
  if (actions.dataset.command === command) return;
  actions.dataset.command = command;
  const retry = h("button", { type: "button", class: "button", text: "Try again", on: { click: () => readNow() } });
  actions.replaceChildren(...(command ? [typed(command)] : []), retry);
}
