// Line charts of the last hour, drawn as SVG.

import { h, measured, s, timeOf } from "./dom.js";

const WIDTH = 420, HEIGHT = 120, LEFT = 38, RIGHT = 6, TOP = 8, BOTTOM = 18;
const MINUTES = [5, 10, 20, 30, 60];
const LINES_SHOWN = 6;

/** Return the next round number above a value, to end the axis with. */
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * unit).find((step) => step >= value);
}

/** Return the lines with the highest values; what is beyond six is summed up as "others". */
export function chosen(lines) {
  const peak = (points) => Math.max(0, ...points.map(([, value]) => value ?? 0));
  const sorted = Object.entries(lines).sort(([, a], [, b]) => peak(b) - peak(a));
  if (sorted.length <= LINES_SHOWN) return sorted;
  return [...sorted.slice(0, LINES_SHOWN - 1), ["others", sum(sorted.slice(LINES_SHOWN - 1).map(([, points]) => points))]];
}

/** Return one line that is the sum of several; a time that only gaps have stays a gap. */
export function sum(lines) {
  const sums = new Map();
  for (const points of lines)
    for (const [at, value] of points) {
      const before = sums.get(at) ?? null;
      sums.set(at, value === null ? before : (before ?? 0) + value);
    }
  return [...sums].sort(([a], [b]) => a - b);
}

/** Return a line cut at its gaps: what was not measured is not drawn. */
export function runs(points) {
  const found = [[]];
  for (const [at, value] of points) {
    if (value === null) found.push([]);
    else found.at(-1).push([at, value]);
  }
  return found.filter((run) => run.length > 0);
}

/** Return the time that a chart covers, in minutes: as much of the hour as there are points for. */
export function minutesOf(lines, now) {
  const oldest = Math.min(now, ...lines.flatMap(([, points]) => points.slice(0, 1).map(([at]) => at)));
  return MINUTES.find((each) => each * 60_000 >= now - oldest) ?? MINUTES.at(-1);
}

/** Return a chart: a title with the newest value, the lines of an hour, and a legend if there are several. */
export function chart(title, unit, lines, now) {
  const shown = chosen(lines);
  const minutes = minutesOf(shown, now);
  const span = minutes * 60_000;
  const values = shown.flatMap(([, points]) => points.map(([, value]) => value ?? 0));
  const top = roundUp(Math.max(0, ...values));
  const x = (at) => LEFT + ((at - now + span) / span) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
  const newest = sum(shown.map(([, points]) => points.slice(-1))).at(-1)?.[1];
  const isSummed = shown.length > 1 && unit !== "ms";
  const label = shown.length === 1 || isSummed ? measured(newest, unit) : "";
  const picture = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title} over the last ${minutes} minutes, now ${label || "see the legend"}` },
    [0, top / 2, top].map((value) => [
      s("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
      s("text", { x: LEFT - 5, y: y(value) + 3, "text-anchor": "end" }, measured(value)),
    ]),
    [minutes, minutes / 2, 0].map((ago) =>
      s("text", { x: x(now - ago * 60_000), y: HEIGHT - 4, "text-anchor": ago === minutes ? "start" : ago === 0 ? "end" : "middle" }, ago ? `${ago} min ago` : "now")),
    shown.map(([, points], n) => runs(points).map((run) => drawnRun(run, n, x, y, shown.length === 1))),
  );
  follow(picture, shown, unit, x, now, span);
  const legend = shown.length > 1 && h("ul", { class: "legend" }, shown.map(([name, points], n) =>
    h("li", {}, s("svg", { viewBox: "0 0 14 8", "aria-hidden": "true" }, s("line", { class: `c${n + 1}`, x1: 0, x2: 14, y1: 4, y2: 4 })),
      `${name} ${measured(points.at(-1)?.[1], unit)}`)));
  return h("div", { class: "card chart" }, h("h3", {}, title, h("span", {}, label)),
    shown.length ? picture : h("p", { class: "quiet small" }, "Nothing was measured yet."), legend);
}

function drawnRun(run, n, x, y, isFilled) {
  const points = run.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`);
  if (points.length === 1) points.push(`${(x(run[0][0]) + 1).toFixed(1)},${y(run[0][1]).toFixed(1)}`);
  const floor = y(0).toFixed(1);
  return [
    isFilled && s("polygon", { class: `area c${n + 1}`, points: `${points[0].split(",")[0]},${floor} ${points.join(" ")} ${points.at(-1).split(",")[0]},${floor}` }),
    s("polyline", { class: `run c${n + 1}`, points: points.join(" ") }),
  ];
}

/** Show the values under the pointer, as the picture's title does for those who have none. */
function follow(picture, shown, unit, x, now, span) {
  const cross = s("line", { class: "cross", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const text = s("title", {});
  picture.append(cross, text);
  picture.addEventListener("pointerleave", () => cross.setAttribute("visibility", "hidden"));
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const at = now - span + ((((event.clientX - box.left) / box.width) * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT)) * span;
    const near = shown.map(([name, points]) => [name, nearest(points, at)]).filter(([, point]) => point);
    if (!near.length) return;
    cross.setAttribute("x1", x(near[0][1][0]));
    cross.setAttribute("x2", x(near[0][1][0]));
    cross.setAttribute("visibility", "visible");
    text.textContent = `${timeOf(near[0][1][0])}\n${near.map(([name, [, value]]) => `${name}: ${measured(value, unit)}`).join("\n")}`;
  });
}

function nearest(points, at) {
  return points.reduce((best, point) => (!best || Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best), null);
}
