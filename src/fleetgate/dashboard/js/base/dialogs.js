// Dialogs: the browser's own <dialog>, which keeps the focus inside, closes by Esc and gives the focus back. Back closes it, too.
import { guardDialog } from "./back.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";

let counter = 0;

/**
 * Show a dialog until it is closed. `body` gets a function that closes it with a value.
 * @param {Object} options
 * @param {string} options.title
 * @param {string} [options.kicker]   a small line above the title
 * @param {(close: (value: any) => void) => Node[]} options.body
 * @param {boolean} [options.wide]
 * @returns {Promise<any>}  null when it was dismissed
 */
export function dialog({ title, kicker = "", body, wide = false }) {
  return new Promise((resolve) => {
    let result = null;
    const id = `dialog-${++counter}`;
    const node = /** @type {HTMLDialogElement} */ (
      h("dialog", { class: wide ? "dialog wide" : "dialog", "aria-labelledby": id })
    );
    const close = (value) => {
      result = value;
      node.close();
    };
    const dismiss = h("button", { type: "button", class: "icon-button", "aria-label": "Close" }, icon("cancel"));
    dismiss.addEventListener("click", () => close(null));
    const heading = h("div", {}, kicker ? h("p", { class: "kicker", text: kicker }) : null, h("h2", { id, text: title }));
    node.append(h("header", { class: "dialog-head" }, heading, dismiss), ...body(close));
    node.addEventListener("click", (event) => {
      const leaves = event.target instanceof Element && event.target.closest("a[href^='#/']"); // to another page
      if (event.target === node || leaves) close(null); // the first: outside the dialog
    });
    node.addEventListener("close", () => {
      node.remove();
      resolve(result);
    });
    document.body.append(node);
    guardDialog();
    node.showModal();
    /** @type {HTMLElement | null} */ (node.querySelector("[autofocus]"))?.focus();
  });
}

/**
 * Ask for confirmation. "Cancel" has the focus.
 * @param {{title: string, text: string, detail?: string, yes: string, no?: string, danger?: boolean}} options
 * @returns {Promise<boolean>}
 */
export async function confirm({ title, text, detail = "", yes, no = "Cancel", danger = true }) {
  const answer = await dialog({
    title,
    body: (close) => [
      h("p", { text }),
      detail ? h("p", { class: "quoted", text: detail }) : h("span", { hidden: true }),
      h("div", { class: "dialog-foot" },
        h("button", { type: "button", class: "button", text: no, autofocus: true, on: { click: () => close(null) } }),
        h("button", { type: "button", class: danger ? "button danger" : "button primary", text: yes, on: { click: () => close(true) } })),
    ],
  });
  return answer === true;
}

/** Names and values, as a list. @param {[string, Node | string | null][]} rows */
export function facts(rows) {
  const list = h("dl", { class: "facts" });
  for (const [name, value] of rows) {
    if (value !== null && value !== "") list.append(h("dt", { text: name }), h("dd", {}, value));
  }
  return list;
}

/** A labelled field with a hint. */
export function field(label, input, hint = "") {
  const id = `field-${++counter}`;
  input.id = id;
  const parts = [h("label", { for: id, text: label }), input];
  if (hint) {
    input.setAttribute("aria-describedby", `${id}-hint`);
    parts.push(h("p", { class: "hint", id: `${id}-hint`, text: hint }));
  }
  return h("div", { class: "field" }, ...parts);
}

/** Close what is open, as by Esc. */
export function closeDialogs() {
  for (const node of /** @type {NodeListOf<HTMLDialogElement>} */ (document.querySelectorAll("dialog[open]"))) node.close();
}
