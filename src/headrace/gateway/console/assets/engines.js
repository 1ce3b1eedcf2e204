import { get, path } from "./api.js";
import { chart } from "./charts.js";
import { bar, count, empty, field, h, measured, notice, pretty, show, table } from "./dom.js";

/** Engines with rates and times as this process measured them, and the state of an aggregate. */
export function open(_, signal) {
  const list = h("div", {});
  const lookup = h("div", {});
  const found = h("div", {});
  const charts = h("div", { class: "charts" });
  const look = async ({ engine, id }) => {
    try {
      const state = await get(`engines/${path(engine, id)}`, { signal });
      found.replaceChildren(h("p", {}, `${id} is at version ${count(state.version)}:`), h("pre", {}, pretty(state.state)));
    } catch (error) {
      found.replaceChildren(notice(error.status === 404 ? `Engine ${engine} has no aggregate ${id}.` : `It can't be read: ${error.message}`, error.status === 404 ? "" : "bad"));
    }
  };
  const refresh = async (_overview, each) => {
    const [{ engines }, hour] = await Promise.all([get("console/api/engines", { signal: each }), get("console/api/charts", { signal: each })]);
    show(list, engines, () => engines.length ? table(COLUMNS, engines, "Engines") : empty("This gateway serves no engine that you may read."));
    show(lookup, engines.map(({ name }) => name), (names) => names.length ? [h("h2", {}, "An aggregate’s state"), bar([
      field("Engine", h("select", { name: "engine" }, names.map((name) => h("option", {}, name)))),
      field("Id", h("input", { name: "id", required: true, autocomplete: "off" })),
    ], "Read", look)] : []);
    show(charts, [hour, engines.length], () => engines.length ? [
      chart("Commands sent from here", "/s", hour.charts.sent, hour.now_ms), chart("Commands committed here", "/s", hour.charts.commands, hour.now_ms),
      chart("Time of a command, p50", "ms", hour.charts.command_p50_ms, hour.now_ms), chart("Time of a command, p99", "ms", hour.charts.command_p99_ms, hour.now_ms),
    ] : []);
  };
  return {
    about: "Rates and times are those of this process: of commands that it sent, and of those that its own partitions committed.",
    element: h("div", {}, list, lookup, found, h("h2", {}, "The last hour"), charts), refresh,
  };
}

const COLUMNS = [
  ["Engine", ({ name }) => name, "wrap"],
  ["Partitions here", ({ owned_here, partitions }) => `${count(owned_here)} of ${count(partitions)}`, "number"],
  ["Sent", ({ sent }) => measured(sent, "/s"), "number"],
  ["Committed", ({ committed }) => measured(committed, "/s"), "number"],
  ["p50", ({ p50_ms }) => measured(p50_ms, "ms"), "number"],
  ["p99", ({ p99_ms }) => measured(p99_ms, "ms"), "number"],
  ["Commands", ({ names }) => names.join(", "), "wrap"],
];
