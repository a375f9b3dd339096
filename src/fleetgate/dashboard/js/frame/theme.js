// The theme: light, dark, or that of the system.
import { byId } from "../base/dom.js";
import { icon } from "../base/icons.js";

const ORDER = ["system", "light", "dark"];
const SAID = { system: "system", light: "light", dark: "dark" };

export function setUpTheme() {
  const button = byId("theme");
  draw(button, document.documentElement.dataset.theme ?? "system");
  button.addEventListener("click", () => {
    const next = ORDER[(ORDER.indexOf(document.documentElement.dataset.theme ?? "system") + 1) % ORDER.length];
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      if (next === "system") localStorage.removeItem("fleetgate.theme");
      else localStorage.setItem("fleetgate.theme", next);
    } catch {
      // Not remembered.
    }
    draw(button, next);
  });
}

function draw(button, theme) {
  button.replaceChildren(icon(theme));
  button.setAttribute("aria-label", `Colours: ${SAID[theme]}`);
  button.title = `Colours: ${SAID[theme]}`;
}
