import { get, lines, path } from "./api.js";
import { bar, empty, field, h, notice, show } from "./dom.js";
import { drawnEvent } from "./journals.js";

const PAGE = 50;
const KEPT = 500;

/** All tags, or the events of one: what there is, then what comes. */
export function open([tag], signal) {
  return tag === undefined ? list() : followed(tag, signal);
}

const form = (tag) => bar([field("Tag", h("input", { name: "tag", required: true, value: tag ?? "", autocomplete: "off" }))], "Show", (given) => {
  location.hash = `#/tags/${path(given.tag)}`;
});

function list() {
  const names = h("div", {});
  const refresh = async (_, signal) => show(names, await get("tags", { signal }), ({ tags }) => tags.length
    ? h("div", { class: "badges" }, tags.map((tag) => h("a", { href: `#/tags/${path(tag)}`, "data-key": tag }, h("span", { class: "badge accent" }, tag))))
    : empty("No replicated event has a tag that you may read. One that is in the log only can be looked up by its name."));
  return { about: "Events of all journals that carry a tag, each once, in one order.", element: h("div", {}, form(), names), refresh };
}

function followed(tag, signal) {
  const events = h("ol", { class: "timeline" });
  const state = h("p", { class: "quiet", role: "status" });
  const more = h("button", { type: "button", hidden: true }, "More events");
  const follow = h("button", { type: "button", hidden: true }, "Follow new events");
  const trouble = h("div", {});
  let after = null;

  const page = async () => {
    more.hidden = true;
    const found = await get("events", { query: { tag, limit: PAGE, avro: "json", skip_trimmed: "true", ...(after && { after }) }, signal });
    events.append(...found.events.map(drawnEvent));
    after = found.next ?? after;
    more.hidden = found.is_end;
    follow.hidden = !found.is_end;
    state.textContent = events.children.length ? "The oldest first." : "There are no events with this tag.";
  };
  const following = async () => {
    follow.hidden = true;
    state.textContent = "New events appear at the end as they are written.";
    for await (const event of lines("events", { tag, live: "true", avro: "json", skip_trimmed: "true", ...(after && { after }) }, signal)) {
      events.append(drawnEvent(event));
      after = event.tag_offset;
      if (events.children.length > KEPT) events.firstChild.remove();
    }
    throw new Error("the gateway ended the stream");
  };
  const guarded = (work) => async () => {
    trouble.replaceChildren();
    try {
      await work();
    } catch (error) {
      if (signal.aborted) return;
      state.textContent = "";
      trouble.replaceChildren(notice(`Events are not shown any further: ${error.message}`, "bad"));
      (work === following ? follow : more).hidden = false;
    }
  };
  more.addEventListener("click", guarded(page));
  follow.addEventListener("click", guarded(following));
  guarded(page)();
  return { title: `Tag ${tag}`, about: "Events of all journals that carry this tag.", element: h("div", {}, form(tag), state, events, trouble, h("div", { class: "bar" }, more, follow)) };
}
