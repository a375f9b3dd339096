// All that is known of one job, and what it prints, as it prints it.
import { get } from "./api.js";
import { timeNode } from "./clock.js";
import { dialog, facts } from "./dialogs.js";
import { h } from "./dom.js";
import { estimate, exact, place, reasonName } from "./format.js";
import * as actions from "./job_actions.js";
import { follow } from "./job_output.js";
import { ENDED } from "./job_reading.js";
import { mayChange } from "./store.js";

const LOOK_MS = 2_000;

export async function showJob(job) {
  const leaving = new AbortController();
  const known = h("div", {});
  const foot = h("div", { class: "dialog-foot" });
  let shown = "";
  const draw = (close) => {
    const now = JSON.stringify(job);
    if (now === shown) return;
    shown = now;
    known.replaceChildren(facts(rows(job)));
    foot.replaceChildren(...buttons(job, close));
  };
  const act = await dialog({
    title: job.name ?? job.command.join(" "),
    kicker: `Job ${job.id}`,
    wide: true,
    body: (close) => {
      draw(close);
      const output = h("section", { class: "job-output", "aria-label": "What it printed" });
      const look = async () => {
        if (leaving.signal.aborted) return;
        try {
          job = await get(`/v1/jobs/${encodeURIComponent(job.id)}`, leaving.signal);
          draw(close);
        } catch {
          // The page says so when the service is gone.
        }
        if (!leaving.signal.aborted) setTimeout(look, LOOK_MS);
      };
      setTimeout(look, LOOK_MS);
      if (mayChange()) follow(job.id, output, leaving.signal);
      else output.append(h("p", { class: "hint", text: "What it printed is shown to those who are signed in: fleetgate open" }));
      return [known, output, foot];
    },
  });
  leaving.abort();
  if (act) await act();
}

function rows(job) {
  const over = ENDED.includes(job.state);
  return [
    ["State", state(job)],
    ["Waits because", job.reason ? `${reasonName(job.reason.code)}: ${job.reason.text}` : null],
    ["Until", moment(job.reason?.until, "left")],
    ["Starts", estimate(job.estimate_s)],
    [over ? "What became of it" : "Last", job.reason ? null : job.why],
    ["Command", h("code", { text: job.command.join(" ") })],
    ["In", job.cwd],
    ["Model", job.model ?? job.models.join(", ")],
    ["Project", job.project === "default" ? null : job.project],
    ["Attempts", attempts(job)],
    ["Exit", job.exit_code !== null ? String(job.exit_code) : job.signal !== null ? `signal ${job.signal}` : null],
    ["Process", job.pid === null ? null : String(job.pid)],
    ["Key", job.key],
    ["Session", job.session],
    ["Submitted", moment(job.submitted_at, "ago")],
    ["By", job.by],
    ["Started", moment(job.started_at, "ago")],
    ["Ended", over ? moment(job.finished_at, "ago") : null],
  ];
}

function state({ state: now, ending, position, of, pool }) {
  if (ending) return `${now}, is being ended`;
  return position === null ? now : `${now}, position ${place({ position, of, pool })}`;
}

function attempts({ attempt, failures, retries, limits, losses }) {
  const parts = [`${failures} of ${retries} retries spent`];
  if (limits) parts.push(`${limits} by limits`);
  if (losses) parts.push(`${losses} lost`);
  return attempt ? `${attempt} (${parts.join(", ")})` : null;
}

function buttons(job, close) {
  if (!mayChange()) return [];
  const button = (words, tone, act) => h("button", { type: "button", class: `button ${tone}`, text: words, on: { click: () => close(() => act(job)) } });
  if (ENDED.includes(job.state)) return [button("Run it anew", "primary", actions.retryJob)];
  const found = job.ending ? [] : [button(job.state === "running" ? "End it…" : "Cancel it…", "danger", actions.cancelJob)];
  if (job.state === "held") found.push(button("Approve…", "primary", actions.approveJob));
  return found;
}

/** Relative and exact. */
function moment(iso, mode) {
  return iso ? h("span", {}, timeNode(iso, mode), h("span", { class: "exact", text: exact(iso) })) : null;
}
