// The browser's Back closes a dialog. While one is open, the newest entry of the browser's history is a guard, which Back
// leaves. A dialog that is closed otherwise leaves its guard behind: the next dialog uses it, and Back and Forward skip it.

/** The entry that is shown: an event says which one is shown now, not which one was. */
let here = entry();
let skips = false;

/** A guard is named while it has the address of its dialog: coming back to it opens the dialog again. */
function entry() {
  const { guard = false, named = false } = history.state ?? {};
  return { guard, named, hash: location.hash };
}

/** Replace the entry, or put another one after it. */
export function setEntry({ address = location.hash, guard = false, named = false, push = false }) {
  history[push ? "pushState" : "replaceState"](guard ? { guard, named } : null, "", address || location.pathname + location.search);
  here = entry();
}

/** Have Back close the dialog that is being opened. */
export function guardDialog() {
  if (!entry().guard) setEntry({ guard: true, push: true });
}

addEventListener("popstate", () => {
  const left = here;
  here = entry();
  const open = /** @type {HTMLDialogElement[]} */ ([...document.querySelectorAll("dialog[open]")]);
  if (skips) skips = false;
  else if (open.length && left.guard && left.hash === here.hash) {
    open.pop()?.close(); // the topmost
    if (open.length) guardDialog();
  } else if (!open.length && here.guard && !here.named) {
    skips = true;
    history.back();
  } else if (!open.length && left.guard && left.hash === here.hash) history.back();
});
