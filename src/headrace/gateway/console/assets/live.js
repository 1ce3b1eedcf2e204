import { get, parsed, path, socket } from "./api.js";
import { badge, bar, empty, field, h, pretty, show, timeOf } from "./dom.js";

const MOST = 24;
const LONGEST_MS = 15_000;
const REFUSED = 4400; // codes from here on are statuses of HTTP, added to 4000

/** Values of keys as they change, each over a WebSocket of its own. */
export function open([keyspace, state, key]) {
  const choices = h("div", {});
  const cards = h("div", { class: "live" });
  const followed = new Map();
  const add = (where) => {
    const name = JSON.stringify(where);
    if (followed.has(name) || followed.size >= MOST) return;
    const one = follow(where, () => { followed.delete(name); one.close(); one.element.remove(); });
    followed.set(name, one);
    cards.prepend(one.element);
  };
  const refresh = async (_, signal) => {
    const found = await get("keyspaces", { signal });
    show(choices, found, ({ keyspaces }) => keyspaces.length ? form(keyspaces, keyspace, state, add)
      : empty("This gateway serves no keyspace that you may read. Name one: headrace gateway run --app, or headrace node run --http."));
  };
  if (key !== undefined) add([keyspace, state, key]);
  return {
    about: "The value of a key now, and each change as it is committed.",
    element: h("div", {}, choices, cards),
    refresh,
    close: () => followed.forEach((each) => each.close()),
  };
}

function form(keyspaces, keyspace, state, add) {
  const options = keyspaces.flatMap(({ name, states }) => states.map((each) => {
    const value = JSON.stringify([name, each.name]);
    return h("option", { value, selected: name === keyspace && each.name === state }, `${name} / ${each.name}`);
  }));
  return bar([
    field("State", h("select", { name: "where" }, options)),
    field("Key", h("input", { name: "key", required: true, autocomplete: "off", placeholder: "ann, or [\"ann\", 7]" })),
  ], "Follow", (given) => add([...JSON.parse(given.where), given.key]));
}

/** Follow one key until it is closed; a lost connection is opened again, and the value is marked as old meanwhile. */
function follow([keyspace, state, key], remove) {
  const status = h("span", { role: "status" }, badge("connecting"));
  const value = h("pre", {}, "…");
  const note = h("p", { class: "quiet small" }, "");
  const element = h("div", { class: "card" }, h("div", { class: "top" },
    h("div", {}, h("h3", {}, key), h("span", { class: "quiet small" }, `${keyspace} / ${state}`)),
    h("div", { class: "badges" }, status, h("button", { class: "plain", type: "button", onclick: remove, "aria-label": `Stop following ${key}` }, "✕"))), value, note);
  let current = null, timer = 0, delay = 500, changes = 0, isOver = false, changedAt = 0;

  const told = (kind, text) => status.replaceChildren(badge(text, kind));
  const opened = () => {
    current = socket(`keyspaces/${path(keyspace)}/states/${path(state, key)}`, "headrace.json");
    current.addEventListener("open", () => { delay = 500; element.classList.remove("stale"); told("good", "live"); });
    current.addEventListener("message", ({ data }) => {
      value.textContent = data === "{}" ? "(no value)" : pretty(readable(parsed(data)));
      value.classList.remove("flash");
      void value.offsetWidth; // the animation begins again only after the style was computed without it
      value.classList.add("flash");
      changedAt = Date.now();
      note.textContent = `${changes ? `${changes} change${changes === 1 ? "" : "s"} seen, the last` : "As of"} ${timeOf(changedAt)}`;
      changes += 1;
    });
    current.addEventListener("close", ({ code, reason }) => {
      if (isOver) return;
      element.classList.add("stale");
      told("bad", "not connected");
      note.textContent = `${changedAt ? `The value is from ${timeOf(changedAt)} or before, and may have changed. ` : ""}${reason}`;
      if (code >= REFUSED) return told("bad", "refused");
      timer = setTimeout(opened, delay * (0.5 + Math.random() / 2));
      delay = Math.min(LONGEST_MS, delay * 2);
    });
  };
  opened();
  return { element, close: () => { isOver = true; clearTimeout(timer); current.close(); } };
}

const readable = (found) => (found !== null && typeof found === "object" && "type" in found && "data" in found ? found.data : found);
