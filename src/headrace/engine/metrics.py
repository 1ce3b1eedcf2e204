"""What engines measure: how long each stage of a command takes, and how commands end."""

from __future__ import annotations

from functools import cache

from headrace.observe import BatchHistogram, batch_histogram, counter, timed

__all__ = ["COMMANDS", "INPUTS", "STAGES", "TIMERS", "StageTimes", "stage"]

COMMANDS = counter("engine", "commands", "Commands by how they ended.", ["engine", "outcome"])
INPUTS = counter(
    "engine", "input_records", "Records of input topics and journals, by what became of them.", ["topic", "outcome"]
)
TIMERS = counter("engine", "timers", "Timers that have fired, by how their commands ended.", ["engine", "outcome"])
STAGES = batch_histogram(
    "engine", "stage", "Time of each stage: route, load, handle, serialize, publish, apply.", ["engine", "stage"]
)


def stage(engine: str, name: str) -> timed:
    """Measure one stage, as a context manager."""
    return timed(_stage(engine, name))


class StageTimes:
    """How long some commands took to be handled and to be turned into records. They are counted together."""

    def __init__(self, engine: str) -> None:
        self.handle: list[float] = []
        self.serialize: list[float] = []
        self._engine = engine

    def count(self) -> None:
        """Count what was measured since the last call."""
        for name, times in (("handle", self.handle), ("serialize", self.serialize)):
            if times:
                _stage(self._engine, name).observe_many(times)
                times.clear()


@cache
def _stage(engine: str, name: str) -> BatchHistogram:
    """Return the histogram of one stage; looking it up costs as much as the observation itself."""
    return STAGES.labels(engine, name)
