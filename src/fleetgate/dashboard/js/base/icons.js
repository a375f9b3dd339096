// The few icons of the page, drawn on a grid of 16.
import { s } from "./dom.js";

const PATHS = {
  front: "M8 13V4.5M4.5 8 8 4.5 11.5 8M3.5 2.5h9",
  add: "M8 3.5v9M3.5 8h9",
  cancel: "m4.5 4.5 7 7m0-7-7 7",
  pause: "M6 4v8M10 4v8",
  stop: "M4.5 4.5h7v7h-7z",
  play: "M5.5 3.8v8.4L12 8z",
  edit: "M3 12.9V10.5l7.3-7.3 2.4 2.4-7.3 7.3zM9 4.5l2.4 2.4",
  release: "M9.5 3H4v10h5.5M7 8h6m-2.5-2.5L13 8l-2.5 2.5",
  restore: "M3.5 8a4.5 4.5 0 1 0 1.4-3.3L3.2 6.3M3 3v3.5h3.5",
  light: "M8 5.2a2.8 2.8 0 1 1 0 5.6 2.8 2.8 0 0 1 0-5.6M8 1.5v1.2M8 13.3v1.2M1.5 8h1.2M13.3 8h1.2M3.4 3.4l.9.9M11.7 11.7l.9.9M3.4 12.6l.9-.9M11.7 4.3l.9-.9",
  dark: "M13 9.4A5.3 5.3 0 0 1 6.6 3 5.3 5.3 0 1 0 13 9.4z",
  system: "M2.5 3.5h11v7h-11zM6 13.5h4M8 10.5v3",
  keys: "M2 4.5h12v7H2zM4.5 7h.01M7 7h.01M9.5 7h.01M11.8 7h.01M5 9.3h6",
  previous: "M9.8 4 5.8 8l4 4",
  next: "m6.2 4 4 4-4 4",
  approve: "m3.5 8.5 3 3 6-7",
  copy: "M6 6h7v7H6zM3.5 10H3V3h7v.5",
  warn: "M8 2.3 14.2 13H1.8zM8 6.3v3.2M8 11.3h.01",
  info: "M8 2.2a5.8 5.8 0 1 1 0 11.6A5.8 5.8 0 0 1 8 2.2M8 7.5v3.3M8 5.2h.01",
  offline: "M2.5 6.2A8 8 0 0 1 8 4m5.5 2.2a8 8 0 0 0-1.6-1.2M5 8.8a4.6 4.6 0 0 1 2.2-1.2M8 11.8h.01M2.5 2.5l11 11",
  chart: "M2.5 13.5h11M4 11V8M8 11V4M12 11V6.5",
};

/** @param {keyof typeof PATHS} name */
export function icon(name) {
  return s("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, s("path", { d: PATHS[name] }));
}
