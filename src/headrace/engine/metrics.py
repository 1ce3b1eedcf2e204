"""What engines measure: how long each stage of a command takes, and how commands end."""

from __future__ import annotations

from functools import cache

from prometheus_client.metrics import Histogram

from headrace.observe import counter, histogram, timed

__all__ = ["COMMANDS", "INPUTS", "STAGES", "TIMERS", "stage"]

COMMANDS = counter("engine", "commands", "Commands by how they ended.", ["engine", "outcome"])
INPUTS = counter(
    "engine", "input_records", "Records of input topics and journals, by what became of them.", ["topic", "outcome"]
)
TIMERS = counter("engine", "timers", "Timers that have fired, by how their commands ended.", ["engine", "outcome"])
STAGES = histogram(
    "engine", "stage", "Time of each stage: route, load, handle, serialize, publish, apply.", ["engine", "stage"]
)


def stage(engine: str, name: str) -> timed:
    """Measure one stage, as a context manager."""
    return timed(_stage(engine, name))


@cache
def _stage(engine: str, name: str) -> Histogram:
    """Return the histogram of one stage; looking it up costs as much as the observation itself."""
    return STAGES.labels(engine, name)
