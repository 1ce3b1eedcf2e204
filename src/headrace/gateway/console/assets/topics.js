import { get, path } from "./api.js";
import { chart } from "./charts.js";
import { badge, count, empty, h, measured, notice, show, table } from "./dom.js";

/** All topics, or one with its partitions. */
export function open([name]) {
  return name === undefined ? list() : one(name);
}

function list() {
  const element = h("div", {});
  const refresh = async (_, signal) => {
    const found = await get("console/api/topics", { signal });
    show(element, found, ({ topics, left_out }) => [
      left_out ? notice(`${count(left_out)} more topics are not shown: the console looks at a thousand partitions.`, "warn") : null,
      topics.length ? table(COLUMNS, topics, "Topics") : empty("There are no topics that you may read."),
    ]);
  };
  return { about: "Each topic with the next offset of its partitions, and how far the store has replicated its journals.", element, refresh };
}

const COLUMNS = [
  ["Topic", ({ name }) => h("a", { href: `#/topics/${path(name)}`, "data-key": name }, name), "wrap"],
  ["Kind", ({ is_journal }) => (is_journal ? badge("journals", "accent") : badge("records"))],
  ["Partitions", ({ partitions }) => count(partitions.length), "number"],
  ["Written", ({ head }) => count(head), "number"],
  ["Records a second", ({ rate }) => measured(rate), "number"],
  ["Not replicated", ({ lag }) => lagOf(lag), "number"],
];

const PARTITION_COLUMNS = [
  ["Partition", ({ partition }) => count(partition), "number"],
  ["First offset", ({ start }) => count(start), "number"],
  ["Head", ({ head }) => count(head), "number"],
  ["Replicated to", ({ replicated }) => (replicated === null ? "–" : count(replicated)), "number"],
  ["Lag", ({ lag }) => lagOf(lag), "number"],
];

const lagOf = (lag) => (lag === null ? h("span", { class: "quiet", title: "Nothing replicates this topic." }, "–") : lag ? badge(count(lag), "warn") : badge("0", "good"));

function one(name) {
  const partitions = h("div", {});
  const charts = h("div", { class: "charts" });
  const refresh = async (_, signal) => {
    const [found, hour] = await Promise.all([get("console/api/topics", { signal }), get("console/api/charts", { signal })]);
    const topic = found.topics.find((each) => each.name === name) ?? null;
    show(partitions, topic, () => topic === null
      ? empty(`There is no topic ${name} that you may read${found.left_out ? ", or it is one of those that are not shown" : ""}.`)
      : [topic.is_journal && h("p", {}, h("a", { href: `#/journals/${path(name)}` }, "Journals of this topic")), table(PARTITION_COLUMNS, topic.partitions, "Partitions")]);
    show(charts, hour, ({ charts: all, now_ms: now }) => [
      chart("Records written", "/s", pick(all.rate, name), now),
      topic?.is_journal && chart("Records not replicated yet", "", pick(all.lag, name), now),
    ]);
  };
  return { title: name, about: "Head is the next offset to be written; what lies below “replicated to” is in the store.", element: h("div", {}, partitions, h("h2", {}, "The last hour"), charts), refresh };
}

const pick = (lines, name) => (name in lines ? { [name]: lines[name] } : {});
