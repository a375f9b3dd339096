// Messages about what was done, on the screen and for screen readers, with Undo where that is possible.
import { byId, h, text } from "./dom.js";
import { icon } from "./icons.js";

const STAYS_MS = 9_000;
const MOST = 4;

/**
 * @param {string} message
 * @param {{bad?: boolean, undo?: () => Promise<void> | void}} [options]
 */
export function say(message, { bad = false, undo } = {}) {
  const live = byId(bad ? "say-now" : "say");
  text(live, "");
  requestAnimationFrame(() => text(live, undo ? `${message} You can undo this.` : message));
  const close = h("button", { type: "button", class: "icon-button", "aria-label": "Close this message" }, icon("cancel"));
  const toast = h("div", { class: bad ? "toast bad" : "toast" }, h("p", { text: message }));
  if (undo) {
    const button = h("button", { type: "button", class: "button small", text: "Undo" });
    button.addEventListener("click", async () => {
      toast.remove();
      await undo();
    });
    toast.append(button);
  }
  toast.append(close);
  close.addEventListener("click", () => toast.remove());
  const region = byId("toasts");
  region.append(toast);
  while (region.children.length > MOST) region.firstElementChild?.remove();
  leaveLater(toast);
}

/** Disappears after a while, but not while the pointer or the focus is in it. */
function leaveLater(toast) {
  const timer = setInterval(() => {
    if (!toast.isConnected) clearInterval(timer);
    else if (!toast.matches(":hover, :focus-within")) {
      clearInterval(timer);
      toast.remove();
    }
  }, STAYS_MS);
}
