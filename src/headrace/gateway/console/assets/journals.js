import { get, path } from "./api.js";
import { badge, bar, count, empty, field, h, moment, notice, pretty, show, table } from "./dom.js";

const PAGE = 50;

/** A form to find a journal, the journals of a topic, or the timeline of one. */
export function open([topic, id], signal) {
  const names = h("datalist", { id: "journal-topics" });
  const form = bar([
    field("Topic", h("input", { name: "topic", required: true, list: "journal-topics", value: topic ?? "", autocomplete: "off" })),
    field("Id", h("input", { name: "id", value: id ?? "", placeholder: "empty: some of them", autocomplete: "off" })),
  ], "Show", (given) => { location.hash = `#/journals/${given.id ? path(given.topic, given.id) : path(given.topic)}`; });
  const part = id !== undefined ? timeline(topic, id, signal) : topic !== undefined ? list(topic) : chooser();
  const refresh = async (overview, each) => {
    const { topics } = await get("console/api/topics", { signal: each });
    const journals = topics.filter(({ is_journal }) => is_journal);
    show(names, journals.map(({ name }) => name), (all) => all.map((name) => h("option", { value: name })));
    await part.refresh(journals, each);
  };
  return { title: id ?? (topic && `Journals of ${topic}`), about: part.about, element: h("div", {}, form, names, part.element), refresh };
}

function chooser() {
  const element = h("div", {});
  const refresh = async (journals) => show(element, journals, () => journals.length
    ? table([
        ["Topic", ({ name }) => h("a", { href: `#/journals/${path(name)}`, "data-key": name }, name), "wrap"],
        ["Partitions", ({ partitions }) => count(partitions.length), "number"],
        ["Written", ({ head }) => count(head), "number"],
      ], journals, "Topics with journals")
    : empty("No topic that you may read has journals yet."));
  return { about: "The events of one thing, in order: choose a topic, then the journal’s id.", element, refresh };
}

function list(topic) {
  const element = h("div", {});
  const refresh = async (_, signal) => {
    const found = await get(`console/api/journals/${path(topic)}`, { signal });
    show(element, found, ({ journals, is_cut }) => [
      is_cut && notice("There are more than are listed here; any of them can be found by its id."),
      journals.length
        ? table([
            ["Journal", ({ id }) => h("a", { href: `#/journals/${path(topic, id)}`, "data-key": id }, id), "wrap"],
            ["Events up to", ({ seq_nr }) => count(seq_nr), "number"],
            ["Last written", ({ updated_ms }) => moment(updated_ms)],
            ["", ({ is_held }) => (is_held ? badge("held", "bad") : null)],
          ], journals, "Journals")
        : empty("The store has no journals of this topic yet. One that is in the log only can be found by its id."),
    ]);
  };
  return { about: "Some of the journals that are replicated to the store.", element, refresh };
}

function timeline(topic, id, signal) {
  const state = h("div", { class: "badges" });
  const events = h("ol", { class: "timeline" });
  const older = h("button", { type: "button", hidden: true }, "Older events");
  const trouble = h("div", {});
  const history = h("div", {});
  const where = `journals/${path(topic, id)}`;
  let first = null; // the number of the oldest event that is shown
  let last = 0;
  let lastOffset = null; // of the event with that number: of a journal that was purged and began again it is another one

  const page = async (from, to, each) => (await get(where, { query: { from, to, limit: PAGE, avro: "json" }, signal: each })).events;
  const newest = async (pointer, each) => {
    if (last && (await page(last, last, each))[0]?.offset !== lastOffset) reset();
    if (pointer <= last) return;
    const from = Math.max(1, pointer - PAGE + 1, last + 1);
    const found = await page(from, pointer, each);
    if (last && from > last + 1) events.replaceChildren(); // more came than a page holds: the gap would not show
    if (first === null || from > last + 1) first = from;
    last = pointer;
    lastOffset = found.at(-1)?.offset;
    events.prepend(...found.reverse().map(drawnEvent));
    older.hidden = first <= 1;
  };
  older.addEventListener("click", async () => {
    const to = first - 1;
    const from = Math.max(1, to - PAGE + 1);
    older.disabled = true;
    try {
      const found = await page(from, to, signal);
      if (first !== to + 1) return; // the journal began again meanwhile
      events.append(...found.reverse().map(drawnEvent));
      first = from;
      older.hidden = first <= 1;
      trouble.replaceChildren();
    } catch (error) {
      if (!signal.aborted) trouble.replaceChildren(notice(`Older events can't be shown: ${error.message}`, "bad"));
    } finally {
      older.disabled = false;
    }
  });
  const showHistory = async () => {
    history.replaceChildren(h("p", { class: "quiet" }, "Reading the log…"));
    try {
      const found = await get(`console/api/${where}/history`, { signal });
      history.replaceChildren(found.is_cut ? notice("Only the last actions are shown.") : "", table(MOMENTS, found.moments.reverse(), "Actions"));
    } catch (error) {
      history.replaceChildren(notice(`The history can't be shown: ${error.message}`, "bad"));
    }
  };
  const refresh = async (_, each) => {
    const [pointer, tags] = await Promise.all([
      get(`${where}/pointer`, { signal: each }).catch(missing), get(`${where}/tags`, { signal: each }).catch(missing)]);
    if (pointer === null) reset();
    else if (pointer.pointer < last) { reset(); await newest(pointer.pointer, each); } // it was purged, and began again
    else await newest(pointer.pointer, each);
    show(state, [pointer, tags], () => pointer === null
      ? empty(`There is no journal ${id} in topic ${topic}.`)
      : [badge(`${count(pointer.pointer)} events written`, "accent"), Object.entries(tags ?? {}).map(([tag, n]) => h("a", { href: `#/tags/${path(tag)}` }, badge(`${tag} ${count(n)}`)))]);
  };
  const reset = () => { events.replaceChildren(); first = null; last = 0; lastOffset = null; older.hidden = true; };
  const element = h("div", {}, state, h("h2", {}, "Events, the newest first"), events, trouble, older,
    h("h2", {}, "What happened to it"), h("p", {}, h("button", { type: "button", onclick: showHistory }, "Read every action in the log"),
      h("span", { class: "quiet small" }, " Appends, deletions and purges, also those that had no effect. It reads the journal’s partition.")), history);
  return { about: `A journal of topic ${topic}.`, element, refresh };
}

const missing = (error) => {
  if (error.status === 404) return null;
  throw error;
};

const MOMENTS = [
  ["Offset", ({ offset }) => (offset === null ? "–" : count(offset)), "number"],
  ["Time", ({ timestamp_ms }) => moment(timestamp_ms)],
  ["Action", ({ what }) => what, "wrap"],
  ["Effect", ({ effect }) => badge(effect)],
  ["Why", ({ reason }) => reason, "wrap"],
];

/** Return an event as a point of a timeline: its number, its time, its place, its tags and its payload. */
export function drawnEvent(event) {
  const about = [["metadata", event.metadata], ["headers", event.headers]].filter(([, value]) => value !== undefined);
  return h("li", { class: "event" },
    h("div", { class: "head" }, h("b", {}, event.id === undefined ? `#${count(event.seq_nr)}` : [h("a", { href: `#/journals/${path(event.topic, event.id)}` }, event.id), ` #${count(event.seq_nr)}`]),
      moment(event.timestamp_ms), h("span", { class: "quiet small" }, `${event.topic ? `${event.topic}, ` : ""}partition ${event.partition}, offset ${count(event.offset)}`),
      (event.tags ?? []).map((tag) => h("a", { href: `#/tags/${path(tag)}` }, badge(tag)))),
    event.payload_type === "none" ? h("p", { class: "quiet small" }, "no payload") : h("pre", { title: event.payload_type }, pretty(event.payload)),
    about.map(([name, value]) => h("details", {}, h("summary", { class: "quiet small" }, name), h("pre", {}, pretty(value)))));
}
