import { act, get, path } from "./api.js";
import { chart } from "./charts.js";
import { ask, badge, count, empty, h, measured, moment, notice, pretty, show, table } from "./dom.js";

/** What waits to be sent, and what could not be: the latter can be sent again or removed. */
export function open() {
  const element = h("div", {});
  const charts = h("div", { class: "charts" });
  const said = h("div", { role: "status" });
  let again = async () => {};
  const change = (verb, topic, ids, question) => ask(`${verb === "replay" ? "Send again" : "Remove"}?`, question, verb === "replay" ? "Send again" : "Remove forever", async () => {
    const { count: n } = await act(`console/api/outbox/${path(topic)}/${verb}`, ids ? { ids } : {});
    said.replaceChildren(notice(`${count(n)} message${n === 1 ? "" : "s"} of ${topic} ${verb === "replay" ? "will be sent again" : "removed"}.`));
    await again();
  });
  const refresh = async (_, signal) => {
    const [found, hour] = await Promise.all([get("console/api/outbox", { signal }), get("console/api/charts", { signal })]);
    again = () => refresh(_, signal);
    show(element, found, () => found.is_available ? [lanes(found), dead(found, change)] : notice(found.why));
    show(charts, [hour, found.is_available], () => found.is_available ? [
      chart("Messages that wait", "", hour.charts.pending, hour.now_ms), chart("Dead messages", "", hour.charts.dead, hour.now_ms)] : []);
  };
  return { about: "Messages that applications wrote with their SQL transactions: what waits for a relay, and what could not be sent.", element: h("div", {}, said, element, charts), refresh };
}

const lanes = ({ lanes: all }) => [
  h("h2", {}, "Waiting"),
  all.length ? table([
    ["Topic", ({ topic }) => topic, "wrap"], ["Bucket", ({ bucket }) => count(bucket), "number"],
    ["Waiting", ({ pending }) => count(pending), "number"],
    ["Oldest", ({ pending, max_wait_s }) => (pending ? measured(max_wait_s, "s") : ""), "number"],
    ["Dead", ({ dead: n }) => (n ? badge(count(n), "bad") : "0"), "number"],
    ["Relay", ({ locked_by }) => (locked_by ? badge("sends", "good") : badge("idle"))],
    ["Last error", ({ last_error }) => last_error ?? "", "wrap"],
  ], all, "Waiting messages") : empty("Nothing was ever published to a topic that you may read."),
];

function dead({ dead: all, is_cut, may_change }, change) {
  const topics = [...new Set(all.map(({ topic }) => topic))];
  const buttons = (row) => h("div", { class: "badges" },
    h("button", { type: "button", "data-key": `replay ${row.id}`, onclick: () => change("replay", row.topic, [row.id], `Message ${row.id} of ${row.topic} takes its old place in the order.`) }, "Replay"),
    h("button", { type: "button", class: "danger", "data-key": `purge ${row.id}`, onclick: () => change("purge", row.topic, [row.id], `Message ${row.id} of ${row.topic} is lost, and what it held back is sent.`) }, "Purge"));
  const columns = [
    ["Id", ({ id }) => count(id), "number"], ["Topic", ({ topic }) => topic, "wrap"], ["Key", ({ key }) => (key === null ? "–" : pretty(key.value)), "wrap"],
    ["Message", ({ message }) => (message === null ? h("span", { class: "quiet" }, "tombstone") : h("pre", { title: message.form }, pretty(message.value), message.is_cut ? " …" : "")), "wrap wide"],
    ["Why", ({ error }) => error, "wrap"], ["Since", ({ dead_at }) => moment(dead_at)],
    ...(may_change ? [["", buttons]] : []),
  ];
  return [
    h("h2", {}, "Dead messages"),
    is_cut && notice("Only the first ones are listed."),
    all.length && !may_change ? notice("To send them again or remove them, you need the grant: write system/outbox.") : null,
    all.length && may_change ? h("div", { class: "bar" }, topics.map((topic) => [
      h("button", { type: "button", "data-key": `replay all ${topic}`, onclick: () => change("replay", topic, null, `All dead messages of ${topic} take their old places in the order.`) }, `Replay all of ${topic}`),
      h("button", { type: "button", class: "danger", "data-key": `purge all ${topic}`, onclick: () => change("purge", topic, null, `All dead messages of ${topic} are lost, also those that are not listed here.`) }, `Purge all of ${topic}`)])) : null,
    all.length ? table(columns, all, "Dead messages") : empty("No message is dead."),
  ];
}
