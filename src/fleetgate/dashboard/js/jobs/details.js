// The dialog with the details and the live output of one job.
import { get } from "../state/api.js";
import { momentNode } from "../base/clock.js";
import { dialog, facts } from "../base/dialogs.js";
import { h } from "../base/dom.js";
import { estimate, place, reasonName } from "../base/format.js";
import * as actions from "./actions.js";
import { outputSection } from "./output.js";
import { ENDED } from "./reading.js";
import { spentText } from "../base/money.js";
import { eventsLink, projectLink } from "../fleet/ticket_details.js";
import { itemAddress, nameInAddress } from "../frame/pages.js";
import { mayChange, mayManage } from "../state/store.js";

const LOOK_MS = 2_000;

export async function showJob(job) {
  const leaving = new AbortController();
  const leaveAddress = nameInAddress(itemAddress("jobs", job.id));
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
      const look = async () => {
        if (leaving.signal.aborted) return;
        try {
          job = await get(`/v1/jobs/${encodeURIComponent(job.id)}`, leaving.signal);
          draw(close);
        } catch {
          // A banner says so when the service does not respond.
        }
        if (!leaving.signal.aborted) setTimeout(look, LOOK_MS);
      };
      setTimeout(look, LOOK_MS);
      return [known, outputSection(job.id, leaving.signal), foot];
    },
  });
  leaving.abort();
  leaveAddress();
  if (act) await act();
}

function rows(job) {
  const over = ENDED.includes(job.state);
  return [
    ["State", state(job)],
    ["Reason", job.reason ? `${reasonName(job.reason.code)}: ${job.reason.text}` : null],
    ["Until", momentNode(job.reason?.until, "left")],
    ["Expected start", estimate(job.estimate_s)],
    [over ? "Result" : "Last result", job.reason ? null : job.why],
    ["Command", h("code", { text: job.command.join(" ") })],
    ["Folder", job.cwd],
    ["Model", job.model ?? job.models.join(", ")],
    ["Project", projectLink(job.project)],
    ["Access key", job.access_key],
    ["Attempts", attempts(job)],
    ["Used", spentText(job.usage)?.all ?? null],
    ["Exit code", job.exit_code !== null ? String(job.exit_code) : job.signal !== null ? `signal ${job.signal}` : null],
    ["Process", job.pid === null ? null : String(job.pid)],
    ["Key", job.key],
    ["Session", job.session],
    ["Submitted", momentNode(job.submitted_at, "ago")],
    ["Submitted by", job.by],
    ["Started", momentNode(job.started_at, "ago")],
    ["Finished", over ? momentNode(job.finished_at, "ago") : null],
    ["Events", eventsLink(job.id)],
  ];
}

function state({ state: now, ending, position, of, pool }) {
  if (ending) return `${now}, stopping`;
  return position === null ? now : `${now}, position ${place({ position, of, pool })}`;
}

function attempts({ attempt, failures, retries, limits, losses }) {
  const parts = [`${failures} of ${retries} retries used`];
  if (limits) parts.push(`${limits} after rate limits`);
  if (losses) parts.push(`${losses} lost`);
  return attempt ? `${attempt} (${parts.join(", ")})` : null;
}

function buttons(job, close) {
  if (!mayManage()) return [];
  const button = (words, tone, act) => h("button", { type: "button", class: `button ${tone}`, text: words, on: { click: () => close(() => act(job)) } });
  if (ENDED.includes(job.state)) return [button("Run again", "primary", actions.retryJob)];
  const found = job.ending ? [] : [button(job.state === "running" ? "Stop…" : "Cancel…", "danger", actions.cancelJob)];
  if (job.state === "held" && mayChange()) found.push(button("Approve…", "primary", actions.approveJob));
  return found;
}
