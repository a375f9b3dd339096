// The output of a job, followed to its end: stdout, stderr and the beginnings of attempts. Text is only ever set as text.
import { get } from "../state/api.js";
import { h, plain, show, text } from "../base/dom.js";
import { mayManage } from "../state/store.js";

const TAIL = 64 * 1024; // of what was printed before
const WAIT_S = 15;
const MOST = 3_000; // pieces that are kept on the page
const AGAIN_MS = 2_000;
const PATIENCE = 4; // times that there is no output at all
const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])/g; // colours and the like, of terminals

/** The section of a dialog with the output of a job, or of a run that keeps it. @param {string} id @param {AbortSignal} signal  ends it */
export function outputSection(id, signal) {
  const node = h("section", { class: "job-output", "aria-label": "Output" });
  if (mayManage()) follow(id, node, signal);
  else node.append(h("p", { class: "hint", text: "Sign in to see the output: fleetgate open" }));
  return node;
}

/** @param {string} id @param {HTMLElement} place @param {AbortSignal} signal  ends it */
async function follow(id, place, signal) {
  const note = h("p", { class: "hint", text: "Loading output…" });
  const lines = h("pre", { class: "output", tabindex: "0", role: "log", "aria-label": "Output", hidden: true });
  place.append(h("h3", { text: "Output" }), lines, note);
  const decoders = { out: new TextDecoder(), err: new TextDecoder() };
  let after = "";
  let cut = false;
  let missing = 0;
  while (!signal.aborted) {
    try {
      const query = new URLSearchParams(after ? { after, wait_s: String(WAIT_S) } : { tail: String(TAIL) });
      const page = await get(`/v1/jobs/${encodeURIComponent(id)}/output?${query}`, signal);
      if (!after) cut = page.pieces.reduce((sum, piece) => sum + piece.text.length, 0) > TAIL * 0.8;
      after = page.next || "0-0";
      cut = add(lines, page.pieces, decoders) || page.skipped || cut;
      const printed = lines.childElementCount > 0;
      show(lines, printed);
      const state = page.ended ? (printed ? "" : "No output.") : printed ? "Following live." : "No output yet.";
      text(note, cut ? `Only the end is shown; fleetgate logs ${id} prints all of it. ${state}` : state);
      if (page.ended) return;
    } catch (error) {
      if (signal.aborted) return;
      missing += Number(error.status === 404);
      const young = error.status === 404 && missing < PATIENCE; // a run that has just started has printed nothing
      const last = error.status === 401 || missing >= PATIENCE;
      text(note, young ? "No output yet." : `The output cannot be read: ${error.message}.${last ? "" : " Retrying."}`);
      if (last) return;
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    }
  }
}

/** Append pieces; returns whether some of the oldest were removed. */
function add(lines, pieces, decoders) {
  const atEnd = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 30;
  for (const piece of pieces) {
    const decoder = decoders[piece.stream];
    const decoded = decoder ? decoder.decode(bytes(piece), { stream: true }) : piece.text;
    const tone = { err: "err", fleetgate: "note" }[piece.stream] ?? "";
    const last = lines.lastElementChild;
    const words = decoded.replace(ESCAPES, "").replace(/\r+\n/g, "\n");
    if (last && last.className === tone && !last.textContent.endsWith("\n")) last.textContent += plain(words);
    else lines.append(h("span", { class: tone, text: words }));
  }
  const over = lines.childElementCount - MOST;
  for (let number = 0; number < over; number += 1) lines.firstElementChild.remove();
  if (atEnd) lines.scrollTop = lines.scrollHeight;
  return over > 0;
}

function bytes({ text: plainText, base64 }) {
  return base64 === null ? new TextEncoder().encode(plainText) : Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
}
