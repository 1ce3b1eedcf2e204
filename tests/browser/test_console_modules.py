"""Decisions of the console's modules, run in Node: what a chart covers, sums up, and leaves out."""

from __future__ import annotations

from pathlib import Path

from tests.browser.fixtures import RunNode

import headrace.gateway.console

CHARTS = Path(headrace.gateway.console.__file__).parent / "assets" / "charts.js"
SCRIPT = """
import assert from "node:assert/strict";
import { chosen, minutesOf, roundUp, runs, sum } from "CHARTS";

// The axis ends at a round number, also without values.
assert.deepEqual([0, 0.3, 1, 7, 26, 99, 101].map(roundUp), [1, 0.5, 1, 10, 50, 100, 200]);
// A gap cuts a line, and is not drawn as 0.
assert.deepEqual(runs([[1, 5], [2, null], [3, 0]]), [[[1, 5]], [[3, 0]]]);
assert.deepEqual(runs([[1, null]]), []);
// A sum has a gap only where all lines have one.
assert.deepEqual(sum([[[1, 1], [2, null]], [[1, 2], [2, null], [3, 4]]]), [[1, 3], [2, null], [3, 4]]);
// Beyond six lines, the smallest are summed up.
const lines = Object.fromEntries([1, 2, 3, 4, 5, 6, 7, 8].map((n) => [`t${n}`, [[1, n]]]));
assert.deepEqual(chosen(lines).map(([name, points]) => [name, points[0][1]]), [
  ["t8", 8], ["t7", 7], ["t6", 6], ["t5", 5], ["t4", 4], ["others", 6]]);
// A chart covers as much of the hour as there are points for.
const now = 10_000_000;
const since = (minutes) => minutesOf([["a", [[now - minutes * 60_000, 1]]]], now);
assert.deepEqual([0, 5, 6, 25, 60, 90].map(since), [5, 5, 10, 30, 60, 60]);
assert.equal(minutesOf([], now), 5);
"""


async def test_charts_show_what_was_measured(run_node: RunNode, tmp_path: Path) -> None:
    """Round axes, gaps that stay gaps, sums of many lines, and no empty hour around a minute of points."""
    script = tmp_path / "charts.mjs"
    script.write_text(SCRIPT.replace("CHARTS", CHARTS.as_uri()))
    await run_node(script)
