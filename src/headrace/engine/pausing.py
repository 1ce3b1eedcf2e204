"""Engines that nobody serves for a while: a tool writes their state meanwhile, and their callers wait.

It is the pause of keyspaces: a record in the layouts of the cluster, which all nodes follow. An engine that is being
rebuilt is paused for the same time, and can't be resumed before the rebuild has come to its end.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from headrace.engine.models import Engine
from headrace.errors import RebuildRefused
from headrace.keyspace import KeyspaceLayout, KeyspaceLayouts
from headrace.log import Log

__all__ = ["EnginePhase", "change_engine_phase", "engine_phase", "is_served", "layout_key"]

EnginePhase: TypeAlias = Literal["serving", "paused", "rebuilding"]
# In the layouts a rebuild is what the copying of a keyspace is: nothing but its end leads out of it.
_PHASES: dict[EnginePhase, Literal["serving", "paused", "copying"]] = {
    "serving": "serving",
    "paused": "paused",
    "rebuilding": "copying",
}


def layout_key(engine: str) -> str:
    """Return the name of an engine among the layouts; no keyspace can have it."""
    return f"engine/{engine}"


def is_served(layouts: KeyspaceLayouts, engine: str) -> bool:
    """Return True if nodes serve the engine: it is neither paused nor being rebuilt."""
    layout = layouts.get(layout_key(engine))
    return layout is None or layout.phase == "serving"


async def engine_phase(log: Log, cluster: str, engine: str) -> EnginePhase:
    """Return whether an engine is served, paused or being rebuilt."""
    layouts = KeyspaceLayouts(log, cluster)
    await layouts.open()
    try:
        return _phase_of(layouts.get(layout_key(engine)))
    finally:
        await layouts.close()


async def change_engine_phase(
    log: Log, cluster: str, engine: Engine[Any], phase: EnginePhase, *, ends_rebuild: bool = False
) -> EnginePhase:
    """Pause an engine, or let it be served again; returns the phase before.

    Only the rebuild itself may end a rebuild, or some aggregates would have no state. Raises RebuildRefused.
    """
    layouts = KeyspaceLayouts(log, cluster)
    await layouts.open()
    try:
        layout = layouts.get(layout_key(engine.name)) or KeyspaceLayout(partitions=engine.partitions)
        before = _phase_of(layout)
        if before == "rebuilding" and phase != "rebuilding" and not ends_rebuild:
            reason = "a rebuild of all its aggregates has not come to its end"
            raise RebuildRefused(engine.name, reason, "run `headrace engine rebuild` for all of them again")
        if before != phase:
            await layouts.put(layout_key(engine.name), layout.in_phase(_PHASES[phase]))
        return before
    finally:
        await layouts.close()


def _phase_of(layout: KeyspaceLayout | None) -> EnginePhase:
    if layout is None or layout.phase == "serving":
        return "serving"
    return "paused" if layout.phase == "paused" else "rebuilding"
