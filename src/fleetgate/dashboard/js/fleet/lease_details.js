// The dialog with the details of one lease, and the actions on it.
import { momentNode } from "../base/clock.js";
import { dialog, facts } from "../base/dialogs.js";
import { h } from "../base/dom.js";
import { duration, some, titleOf, who } from "../base/format.js";
import { spentText } from "../base/money.js";
import { itemAddress, nameInAddress } from "../frame/pages.js";
import { outputSection } from "../jobs/output.js";
import { mayChange, mayManage } from "../state/store.js";
import * as actions from "./actions.js";
import { eventsLink, poolLinks, projectLink } from "./ticket_details.js";

export async function showLease(lease) {
  const leaving = new AbortController();
  const leaveAddress = nameInAddress(itemAddress("leases", lease.id));
  const act = await dialog({
    title: titleOf(lease),
    kicker: `Lease ${lease.id}`,
    wide: true,
    body: (close) => [
      facts([
        ["Model", lease.model],
        ["Holds", `${some(lease.slots, "slot")}, ${lease.kind}`],
        ["Pools", poolLinks(lease.pools, lease.kind)],
        ["Project", projectLink(lease.project)],
        ["Holder", who(lease.holder, lease.client)],
        ["Agent process", lease.child_pid === null ? null : String(lease.child_pid)],
        ["Session", lease.session],
        ["Role", lease.role],
        ["Key", lease.key],
        ["Access key", lease.access_key],
        ["Running since", momentNode(lease.granted_at, "ago")],
        ["Used so far", spentText(lease.usage)?.all ?? null],
        ["Waited before", duration(lease.waited_s * 1000, true)],
        ["Slot freed in", momentNode(lease.ends_at, "left")],
        ["Renewal due in", momentNode(lease.renew_by, "left")],
        ["Job", lease.job ? h("a", { href: itemAddress("jobs", lease.id), text: "Details and output" }) : null],
        ["Stopped by", lease.stop_by],
        ["Cannot be stopped", lease.cannot_stop],
        ["Events", eventsLink(lease.id)],
      ]),
      lease.output && !lease.job ? outputSection(lease.id, leaving.signal) : h("span", { hidden: true }),
      leaseActions(lease, close),
    ],
  });
  leaving.abort();
  leaveAddress();
  if (act) await act();
}

function leaseActions(lease, close) {
  if (!mayManage()) return h("span", { hidden: true });
  const button = (words, tone, act) => h("button", { type: "button", class: `button ${tone}`, text: words, on: { click: () => close(() => act(lease)) } });
  return h("div", { class: "dialog-foot" }, mayChange() ? button("Free the slot…", "", actions.release) : null,
    lease.can_stop && !lease.stop_by ? button("Stop…", "danger", actions.stop) : null);
}
