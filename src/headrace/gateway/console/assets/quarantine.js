import { act, get, path } from "./api.js";
import { ask, count, empty, h, moment, notice, show, table } from "./dom.js";

/** Journals that are held because a record can't be decoded or stored, with the two decisions about them. */
export function open() {
  const element = h("div", {});
  const said = h("div", { role: "status" });
  const decide = (verb, { topic, id, offset }) => ask(verb === "skip" ? "Skip this record?" : "Decode it again?",
    verb === "skip" ? `What the record at offset ${offset} of ${topic} holds of ${id} is lost to all readers.` : `Replication decodes what is held of ${id} with its present version.`,
    verb === "skip" ? "Skip forever" : "Decode again", async () => {
      await act(`console/api/quarantine/${path(topic, id)}/${verb}`, { offset });
      said.replaceChildren(notice(`The decision about ${id} is written; replication carries it out.`));
    });
  const refresh = async (_, signal) => show(element, await get("console/api/quarantine", { signal }), ({ held, may_change }) => [
    held.length && !may_change ? notice("To decide about them, you need the grant: write system/quarantine.") : null,
    held.length ? table([
      ["Topic", ({ topic }) => topic, "wrap"], ["Journal", ({ topic, id }) => h("a", { href: `#/journals/${path(topic, id)}` }, id), "wrap"],
      ["Partition", ({ partition }) => count(partition), "number"], ["Offset", ({ offset }) => count(offset), "number"],
      ["Since", ({ since_ms }) => moment(since_ms)], ["Records held", ({ records }) => count(records), "number"], ["Why", ({ reason }) => reason, "wrap"],
      ...(may_change ? [["", (row) => h("div", { class: "badges" },
        h("button", { type: "button", "data-key": `release ${row.topic} ${row.id}`, onclick: () => decide("release", row) }, "Release"),
        h("button", { type: "button", class: "danger", "data-key": `skip ${row.topic} ${row.id}`, onclick: () => decide("skip", row) }, "Skip"))]] : []),
    ], held, "Held journals") : empty("No journal that you may read is held."),
    h("p", { class: "quiet small" }, "Projections keep their dead letters with what they project: headrace projection."),
  ]);
  return { about: "Journals with a record that can’t be decoded or stored. They are held from there, and all others go on.", element: h("div", {}, said, element), refresh };
}
