// The page: which part is shown, asking the gateway again and again, and saying plainly when it does not answer.

import { Away, get, hasToken, Problem, setToken } from "./api.js";
import { ask, h, moment, notice, show, timeOf } from "./dom.js";
import * as cluster from "./cluster.js";
import * as engines from "./engines.js";
import * as journals from "./journals.js";
import * as live from "./live.js";
import * as outbox from "./outbox.js";
import * as overview from "./overview.js";
import * as quarantine from "./quarantine.js";
import * as tags from "./tags.js";
import * as topics from "./topics.js";

const EVERY_MS = 2000;
const PARTS = [
  ["overview", "Overview", overview], ["topics", "Topics", topics], ["journals", "Journals", journals],
  ["tags", "Tags", tags], ["live", "Live values", live], ["cluster", "Nodes", cluster],
  ["engines", "Engines", engines], ["outbox", "Outbox", outbox], ["quarantine", "Quarantine", quarantine],
];
const THEMES = ["auto", "light", "dark"];
const element = (id) => document.getElementById(id);

let current = null;
let leaving = new AbortController();
let answeredAt = null;
let timer = 0;
let turn = 0;

function route() {
  const [, name, ...rest] = location.hash.split("/");
  const found = PARTS.find(([each]) => each === name) ?? PARTS[0];
  open(found, rest.map(decodeURIComponent));
}

function open([name, title, part], rest) {
  leaving.abort();
  current?.close?.();
  leaving = new AbortController();
  const trouble = h("div", {});
  current = { ...part.open(rest, leaving.signal), trouble };
  document.title = `${current.title ?? title} – Headrace console`;
  const shown = h("div", {}, h("h1", {}, current.title ?? title), h("p", {}, current.about), trouble, current.element);
  element("view").replaceChildren(shown);
  element("view").dataset.part = [name, ...rest].join("/");
  element("nav").replaceChildren(...PARTS.map(([each, text], n) =>
    h("a", { href: `#/${each}`, "aria-current": each === name && "page" }, text, h("kbd", { "aria-hidden": "true" }, n + 1))));
  tick();
}

/** Ask for everything that is shown, then again after a while. A later turn replaces one that is still on its way. */
async function tick() {
  clearTimeout(timer);
  const mine = ++turn;
  const view = current;
  element("view").setAttribute("aria-busy", "true");
  try {
    const found = await get("console/api/overview", { signal: leaving.signal });
    if (mine !== turn) return;
    answered(found);
    await refreshed(view, found, leaving.signal);
  } catch (error) {
    if (mine !== turn || error.name === "AbortError") return;
    failed(error);
  }
  if (mine !== turn) return;
  element("view").setAttribute("aria-busy", "false");
  timer = setTimeout(tick, EVERY_MS);
}

/** Refresh the part that is shown. What it may not see or can't get is said there: the rest of the page goes on. */
async function refreshed(view, found, signal) {
  try {
    await view.refresh?.(found, signal);
    view.trouble.replaceChildren();
    view.element.hidden = false;
  } catch (error) {
    if (!(error instanceof Problem) || error.status === 401) throw error;
    view.trouble.replaceChildren(notice(`This can't be shown: ${error.message}`, "bad"));
    view.element.hidden = true; // what it showed before may not be so any more
  }
}

function answered(found) {
  answeredAt = found.now_ms;
  document.body.classList.remove("away");
  element("away").hidden = true;
  show(element("problems"), found.problems, (problems) => problems.map(({ level, text, at_ms }) =>
    h("p", { class: `notice ${level}`, role: level === "bad" ? "alert" : "status" }, text, at_ms && moment(at_ms))));
  status(...verdict(found));
  element("caller").textContent = found.is_anonymous ? "" : found.caller;
}

/** Return what the gateway says of itself in a few words. Without the grants to know, it is not called good. */
export function verdict({ problems, unseen }) {
  const bad = problems.filter(({ level }) => level === "bad").length;
  if (bad) return ["bad", bad === 1 ? "1 problem" : `${bad} problems`];
  if (problems.length) return ["warn", problems.length === 1 ? "1 warning" : `${problems.length} warnings`];
  if (unseen.includes("health")) return ["", "you may not see the state"];
  return ["good", unseen.includes("cluster") ? "no known problems; you may not see nodes" : "no known problems"];
}

function failed(error) {
  if (error instanceof Problem && error.status === 401) {
    status("warn", "not signed in");
    element("problems").replaceChildren();
    current.element.hidden = true;
    current.trouble.replaceChildren(notice(`This gateway wants a token: ${error.message}`, "warn"));
    return;
  }
  const isAway = error instanceof Away;
  if (!isAway && !(error instanceof Problem)) console.error(error);
  const since = answeredAt ? ` since ${timeOf(answeredAt)}. What is shown below is from then, and may not be so any more.` : ".";
  element("away").textContent = isAway ? `The gateway does not answer${since}` : `The console can't be refreshed: ${error.message}`;
  element("away").hidden = false;
  document.body.classList.add("away");
  status("bad", isAway ? "gateway away" : "failed");
}

function status(kind, text) {
  const pill = element("status");
  pill.className = `pill ${kind}`;
  if (pill.textContent !== text) pill.textContent = text;
}

function signIn() {
  const input = h("input", { type: "password", "aria-label": "Token", autocomplete: "off", placeholder: hasToken() ? "a token is set; leave empty to remove it" : "eyJ…" });
  ask("Token", "A JSON Web Token of this gateway's issuer. It is kept in this tab only, until you close it.", "Use it", async (given) => {
    setToken(given);
    tick();
  }, input);
}

function theme(change = false) {
  const before = localStorage.getItem("headrace-theme") ?? "auto";
  const now = change ? THEMES[(THEMES.indexOf(before) + 1) % THEMES.length] : before;
  localStorage.setItem("headrace-theme", now);
  if (now === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = now;
  element("theme").replaceChildren(h("span", { class: "quiet" }, "Theme: "), now);
  element("theme").setAttribute("aria-label", `Theme: ${now}`);
}

/** A digit opens a part, and a slash goes to its first field, unless the person is typing. */
function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
  if (PARTS[event.key - 1]) location.hash = `#/${PARTS[event.key - 1][0]}`;
  if (event.key === "/") {
    event.preventDefault();
    element("view").querySelector("input, select")?.focus();
  }
}

element("skip").addEventListener("click", (event) => {
  event.preventDefault();
  element("content").focus();
});
element("sign-in").addEventListener("click", signIn);
element("theme").addEventListener("click", () => theme(true));
addEventListener("hashchange", route);
addEventListener("keydown", pressed);
// A page that was in the background shows what was so long ago: it asks at once.
document.addEventListener("visibilitychange", () => document.hidden || tick());
theme();
route();
