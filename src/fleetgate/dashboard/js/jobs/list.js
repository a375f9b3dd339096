// The table of jobs: running, waiting (with the reason) and finished.
import { setTime, timeNode } from "../base/clock.js";
import { attr, byId, h, reconcile, show, text } from "../base/dom.js";
import { count, estimate, reasonName } from "../base/format.js";
import { icon } from "../base/icons.js";
import * as actions from "./actions.js";
import { showJob } from "./details.js";
import { CHOICES, ENDED, PAGE, pokeJobs, readJobs } from "./reading.js";
import { spentText } from "../base/money.js";
import { makePager } from "../base/pager.js";
import { keepOneStop } from "../base/roving.js";
import { mayChange, onChange, store, update } from "../state/store.js";
import { makeRow, makeTable, nothing } from "../base/table.js";

/** @type {[string, string][]} */
const COLUMNS = [["state", "State"], ["what", "Job"], ["why", "Reason"], ["age", "Since"], ["do", "(Actions)"]];

const { table, body } = makeTable("Jobs", COLUMNS);
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
  byId("job-list").append(table, empty, unmatched, loading, failed, pager.node);
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
  show(table, list.length > 0 && phase !== "error");
  show(empty, none && choice === "all");
  show(unmatched, none && choice !== "all");
  show(loading, phase === "loading");
  show(failed, phase === "error");
  text(failed.children[1], `The service reports: ${problem}.`);
  reconcile(body, list, (job) => job.id, make, change);
  keepOneStop(body);
  pager.draw(page, PAGE, phase === "ready" ? total : 0);
}

function make() {
  const { node, cells } = makeRow(COLUMNS.map(([name]) => name));
  const button = (title, name, act) => h("button", { type: "button", class: "icon-button", title, on: { click: () => act(node.job) } }, icon(name));
  const p = (node.parts = {
    chip: h("span", { class: "chip" }),
    pos: h("span", { class: "job-pos" }),
    command: h("button", { type: "button", class: "command", on: { click: () => showJob(node.job) } }),
    model: h("span", { class: "model" }),
    extra: h("span", { class: "extra" }),
    why: h("p", { class: "job-why" }),
    reason: h("p", { class: "reason" }),
    age: timeNode(null, "ago"),
    estimate: h("span", { class: "estimate" }),
    approve: button("Approve", "approve", actions.approveJob),
    retry: button("Run again", "restore", actions.retryJob),
    cancel: button("Cancel", "cancel", actions.cancelJob),
  });
  cells.state.append(p.chip, p.pos);
  cells.what.append(p.command, h("p", { class: "under" }, p.model, p.extra));
  cells.why.append(p.why, p.reason);
  cells.age.append(p.age, p.estimate);
  cells.do.append(p.approve, p.retry, p.cancel);
  return node;
}

function change(node, job) {
  node.job = job;
  const p = node.parts;
  const name = job.name ?? job.command.join(" ");
  text(p.chip, job.ending ? "stopping" : job.state);
  attr(p.chip, "class", `chip ${stateClass(job.state)}`);
  text(p.pos, job.position === null ? "" : `#${count(job.position)}`);
  text(p.command, name);
  attr(p.command, "title", job.command.join(" "));
  text(p.model, job.model ?? job.models.join(", "));
  text(p.extra, extras(job));
  text(p.why, job.reason ? reasonName(job.reason.code) : job.why ?? "");
  attr(p.why, "title", job.why);
  text(p.reason, job.reason?.text ?? "");
  attr(p.reason, "title", job.reason?.text ?? null);
  setTime(p.age, job.state === "running" ? job.started_at : ENDED.includes(job.state) ? job.finished_at : job.submitted_at);
  text(p.estimate, estimate(job.estimate_s) ?? "");
  const over = ENDED.includes(job.state);
  show(p.approve, mayChange() && job.state === "held");
  show(p.retry, mayChange() && over);
  show(p.cancel, mayChange() && !over && !job.ending);
  attr(p.approve, "aria-label", `Approve: ${name}`);
  attr(p.retry, "aria-label", `Run again: ${name}`);
  attr(p.cancel, "aria-label", `Cancel the job: ${name}`);
}

function extras({ project, attempt, failures, retries, limits, priority, usage }) {
  const parts = [];
  if (project !== "default") parts.push(project);
  if (attempt > 1) parts.push(`attempt ${attempt}`);
  if (failures) parts.push(`${failures} of ${retries} retries`);
  if (limits) parts.push(`${limits} after rate limits`);
  if (priority) parts.push(`priority ${priority > 0 ? "+" : "−"}${Math.abs(priority)}`);
  const spent = spentText(usage);
  if (spent) parts.push(spent.cost, spent.tokens);
  return parts.filter(Boolean).join(" · ");
}

export function stateClass(state) {
  return { running: "full", held: "paused", queued: "", succeeded: "done" }[state] ?? (state === "cancelled" ? "" : "over");
}
