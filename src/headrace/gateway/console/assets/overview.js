import { get } from "./api.js";
import { chart, sum } from "./charts.js";
import { count, h, measured, show } from "./dom.js";

/** All of it in figures, and the last hour in charts. */
export function open() {
  const figures = h("div", { class: "cards" });
  const charts = h("div", { class: "charts" });
  const refresh = async (overview, signal) => {
    const [topics, found] = await Promise.all([get("console/api/topics", { signal }), get("console/api/charts", { signal })]);
    show(figures, [topics, overview.nodes, overview.version], () => [
      card("Records a second", measured(total(topics.topics, "rate")), "all topics"),
      card("Not replicated", count(total(topics.topics.filter((each) => each.is_journal), "lag")), "records of journals"),
      card("Topics", count(topics.topics.length), `${count(topics.topics.reduce((n, each) => n + each.partitions.length, 0))} partitions`),
      card("Nodes", overview.nodes === null ? "–" : count(overview.nodes), overview.nodes === null ? "none in sight" : "in the cluster"),
      card("Version", overview.version, "of this gateway"),
    ]);
    show(charts, found, ({ charts: all, now_ms: now }) => [
      chart("Records written", "/s", summed(all.rate, "records"), now),
      chart("Records not replicated yet", "", summed(all.lag, "records"), now),
      chart("Commands of engines", "/s", { ...all.sent }, now),
      chart("Time of commands, p99", "ms", { ...all.command_p99_ms }, now),
      chart("Requests to this gateway", "/s", { ...all.requests }, now),
      chart("Time of requests, p99", "ms", { ...all.request_p99_ms }, now),
    ]);
  };
  return { about: "What this gateway sees now, and over the last hour.", element: h("div", {}, figures, h("h2", {}, "The last hour"), charts), refresh };
}

const summed = (lines, name) => (Object.keys(lines).length ? { [name]: sum(Object.values(lines)) } : {});

/** Return a sum; one that nothing is known of is unknown, not 0. */
function total(rows, name) {
  const known = rows.map((row) => row[name]).filter((value) => value !== null && value !== undefined);
  return known.length ? known.reduce((a, b) => a + b, 0) : null;
}

const card = (label, figure, note) =>
  h("div", { class: "card" }, h("div", { class: "label" }, label), h("div", { class: "figure" }, figure, " ", h("small", {}, note)));
