// The jobs of the fleet, by what became of them.
import { attr, byId, h, show, text } from "../base/dom.js";
import { count } from "../base/format.js";
import { makePager } from "../base/pager.js";
import { nothing } from "../base/table.js";
import { onChange, store, update } from "../state/store.js";
import { CHOICES, PAGE, pokeJobs, readJobs } from "./reading.js";
import { makeJobTable } from "./table.js";

const table = makeJobTable("Jobs");
const pager = makePager("the jobs", async (page) => {
  update({ jobsView: { ...store.jobsView, page } });
  await readJobs();
  byId("jobs").scrollIntoView({ block: "nearest" });
});
const empty = nothing("No jobs", "Queue work for later with `fleetgate submit -- COMMAND…`; `fleetgate worker` runs it.");
const unmatched = nothing("No matching jobs", "All lists the others.");
const loading = h("p", { class: "nothing", text: "Loading jobs…" });
const failed = h("div", { class: "nothing", role: "alert", hidden: true }, h("p", { class: "nothing-title", text: "The jobs cannot be read" }),
  h("p", {}), h("button", { type: "button", class: "button small", text: "Try again", on: { click: () => readJobs() } }));

export function setUpJobs() {
  byId("job-list").append(table.node, empty, unmatched, loading, failed, pager.node);
  for (const [name, title] of CHOICES) {
    const number = h("span", { class: "count" });
    const button = h("button", { type: "button", on: { click: () => choose(name) } }, title, number);
    byId("job-states").append(button);
    onChange(["jobs", "jobsView"], () => {
      attr(button, "aria-pressed", String(store.jobsView.choice === name));
      const of = name === "all" ? Object.keys(store.jobs.counts) : CHOICES.find(([each]) => each === name)[2];
      const sum = of.reduce((so, state) => so + (store.jobs.counts[state] ?? 0), 0);
      text(number, sum ? count(sum) : "");
    });
    attr(button, "aria-pressed", String(store.jobsView.choice === name));
  }
  onChange(["jobs", "session", "jobsView"], draw);
  onChange(["phase"], () => store.phase === "ready" && pokeJobs());
}

function choose(choice) {
  update({ jobsView: { page: 0, choice } });
  return readJobs();
}

function draw() {
  const { phase, problem, list, total } = store.jobs;
  const { choice, page } = store.jobsView;
  const none = phase === "ready" && list.length === 0;
  text(byId("jobs-count"), total && choice === "all" ? count(total) : "");
  show(empty, none && choice === "all");
  show(unmatched, none && choice !== "all");
  show(loading, phase === "loading");
  show(failed, phase === "error");
  text(failed.children[1], `The service reports: ${problem}.`);
  table.draw(phase === "error" ? [] : list);
  pager.draw(page, PAGE, phase === "ready" ? total : 0);
}
