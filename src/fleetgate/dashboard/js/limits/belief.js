// The belief about a limit in words: one sentence, and what would change it.
import { now } from "../base/clock.js";
import { h } from "../base/dom.js";
import { clock, count, duration } from "../base/format.js";

const ago = (iso) => (iso ? ` ${duration(now() - Date.parse(iso))} ago` : "");

/** @param {any} said  the answer of /v1/explain */
export function beliefSentence(said) {
  if (said.proven === null || said.limit === null) return said.sentences[0] ?? "";
  const seen = [];
  if (said.proven && said.proven_at) seen.push(`${count(said.proven)} accepted${ago(said.proven_at)}`);
  if (said.refused_level !== null) seen.push(`${count(said.refused_level)} refused${ago(said.refused_at)}`);
  const parts = [`Believes ${count(said.limit)} of ${count(said.cap)}`, seen.join(", ") || "nothing accepted or refused yet"];
  if (said.next_probe_at) {
    const at = Date.parse(said.next_probe_at);
    const when = at > now() ? `at ${clock(at)} if a call is waiting then` : "when a call is waiting";
    parts.push(`tries ${count(said.next_level)} ${when}`);
  }
  return `${parts.join("; ")}.`;
}

/** Why it is believed, and what would change it. */
export function beliefDetails(said) {
  return [
    h("p", { class: "belief-title", text: "Why" }),
    h("ul", { class: "belief-list" }, ...said.sentences.map((sentence) => h("li", { text: sentence }))),
    h("p", { class: "belief-title", text: "What would change the limit" }),
    h("ul", { class: "belief-list" }, ...said.changes.map((change) => h("li", { text: change.replaceAll("`", "") }))),
  ];
}
