"""Runs benches: work and bound in turn, medians, figures as JSON lines, a table and a plot of all.

Promises: both sides of a ratio come from the same run, interleaved. A bench that fails does not stop the others.
Does not promise: that figures of two runs, or two machines, can be compared; their ratios can.
"""

from benchmarks.harness.bench import Bench, Contest, Measure, Readings, Stage, Target, at_least, at_most
from benchmarks.harness.figures import BenchFailed, Figure
from benchmarks.harness.stopwatch import Stopwatch, p50, p99, stopwatch

__all__ = [
    "Bench",
    "BenchFailed",
    "Contest",
    "Figure",
    "Measure",
    "Readings",
    "Stage",
    "Stopwatch",
    "Target",
    "at_least",
    "at_most",
    "p50",
    "p99",
    "stopwatch",
]
