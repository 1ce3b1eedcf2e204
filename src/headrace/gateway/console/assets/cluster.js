import { get } from "./api.js";
import { badge, count, empty, h, moment, notice, show, table } from "./dom.js";

/** Nodes, and who owns, holds and gets which partition. */
export function open() {
  const element = h("div", {});
  const refresh = async (_, signal) => show(element, await get("console/api/cluster", { signal }), (found) =>
    found.is_available ? [nodes(found), found.groups.map(group)] : notice(found.why));
  return { about: "The nodes that share partitions, who owns each of them, and which copies stand by.", element, refresh };
}

function nodes({ nodes: present, gone, is_old }) {
  const rows = [...present.map((each) => ({ ...each, isThere: true })), ...gone.map((each) => ({ ...each, isThere: false }))];
  return [
    h("h2", {}, "Nodes"),
    rows.length ? table([
      ["Node", ({ id }) => id, "wrap"],
      ["State", (row) => stateOf(row, is_old)],
      ["Address", ({ address }) => address, "wrap"],
      ["Owns", ({ owns }) => (owns === undefined ? "" : count(owns)), "number"],
      ["Copies", ({ holds }) => (holds === undefined ? "" : count(holds)), "number"],
    ], rows, "Nodes") : empty("There are no nodes yet. Start one: headrace node run."),
  ];
}

function stateOf({ isThere, is_drained, is_draining, is_leader, is_here, groups, seen_ms }, isOld) {
  if (!isThere) return h("div", { class: "badges" }, badge(is_drained ? "left" : "gone", is_drained ? "" : "bad"), h("span", { class: "sub" }, "since ", moment(seen_ms)));
  return h("div", { class: "badges" },
    isOld ? badge("not known", "warn") : badge(is_draining ? "drains" : "there", is_draining ? "warn" : "good"),
    is_leader && badge("leads"), is_here && badge("this process", "accent"), groups.length === 0 && badge("only calls others"));
}

const group = ({ name, replicas, partitions }) => [
  h("h2", {}, `${name} `, h("span", { class: "quiet small" }, `${count(partitions.length)} partitions, ${replicas === 1 ? "one copy each" : `${count(replicas)} copies each`}`)),
  h("div", { class: "partitions" }, partitions.map(partition)),
];

function partition({ partition: number, owner, former_owner, epoch, standbys, awaited, leaving, moves_to }) {
  const isThin = standbys.some(({ state }) => state !== "online") || awaited.length > 0;
  return h("div", { class: `partition ${owner === null ? "bad" : isThin || moves_to ? "warn" : ""}` },
    h("h3", {}, `Partition ${number}`, h("span", {}, epoch === null ? "" : `epoch ${epoch}`)),
    owner === null ? h("div", {}, h("strong", {}, "Nobody serves it"), former_owner ? `; ${former_owner} did.` : ".") : h("div", {}, h("strong", {}, owner), " owns it"),
    h("div", { class: "badges" }, standbys.map(({ id, state }) => badge(`${id}: ${state === "online" ? "stands by" : state}`, { online: "good", gone: "bad" }[state] ?? "warn")),
      awaited.map((id) => badge(`${id}: awaited`, "warn")), leaving && badge(`${leaving}: leaves`), moves_to && badge(`moves to ${moves_to}`, "accent")));
}
