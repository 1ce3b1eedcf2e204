"""A health tree: the state of each part of a process, for `doctor`, probes and gateways."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

__all__ = ["Health", "HealthSource", "HealthState", "Probe"]

Probe: TypeAlias = Callable[[], Awaitable[None]]
HealthSource: TypeAlias = "Callable[[], Health | None]"


class HealthState(StrEnum):
    """The state of one part."""

    UP = "up"
    STARTING = "starting"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Check:
    """A probe with a time-out."""

    probe: Probe
    timeout_s: float


class Health:
    """One node of the tree.

    Promises: a node is down when it says so or anything below it is; starting when nothing is down but
    something is starting. Setting a state is one assignment, so any thread may do it.
    """

    def __init__(self, name: str, *, state: HealthState = HealthState.UP, check: Check | None = None) -> None:
        self.name = name
        self._own = (state, "")
        self._check = check
        self._children: dict[str, Health] = {}
        self._sources: list[HealthSource] = []

    def child(self, name: str, *, state: HealthState = HealthState.STARTING) -> Health:
        """Return the child of that name; made, in `state`, when it is not there yet."""
        return self._children.setdefault(name, Health(name, state=state))

    def include(self, source: HealthSource) -> None:
        """Add a tree below this node that is made at each look; None while there is none."""
        self._sources.append(source)

    def adopt(self, tree: Health) -> None:
        """Make another tree, which goes on to change, a child of this node."""
        self._children[tree.name] = tree

    def remove(self, name: str) -> None:
        """Forget a child that is no longer wanted."""
        self._children.pop(name, None)

    def check(self, name: str, probe: Probe, *, timeout_s: float = 5.0) -> Health:
        """Add a child whose state `refresh` finds out: down when the probe raises or takes too long."""
        self._children[name] = Health(name, state=HealthState.STARTING, check=Check(probe, timeout_s))
        return self._children[name]

    def up(self) -> None:
        """Set the state to up."""
        self._own = (HealthState.UP, "")

    def starting(self, reason: str = "") -> None:
        """Set the state to starting."""
        self._own = (HealthState.STARTING, reason)

    def down(self, reason: str) -> None:
        """Set the state to down, with the reason."""
        self._own = (HealthState.DOWN, reason)

    @property
    def state(self) -> HealthState:
        """The worst of this node's own state and those below."""
        states = {self._own[0], *(child.state for child in self.children)}
        return next(state for state in (HealthState.DOWN, HealthState.STARTING, HealthState.UP) if state in states)

    @property
    def reason(self) -> str:
        """Why this node itself is not up; empty when it is, or when only something below is not."""
        return self._own[1]

    @property
    def readiness(self) -> HealthState:
        """The state for those who ask whether to send requests here.

        What is down counts, wherever it is. What is starting counts unless it is in a tree that is included: these are
        parts that requests wait for, such as a partition that is between two owners.
        """
        if self.state is HealthState.DOWN:
            return HealthState.DOWN
        own = {self._own[0], *(child.readiness for child in self._children.values())}
        return HealthState.STARTING if HealthState.STARTING in own else HealthState.UP

    @property
    def children(self) -> tuple[Health, ...]:
        """The nodes right below."""
        included = (tree for source in self._sources if (tree := source()) is not None)
        return (*self._children.values(), *included)

    @property
    def is_up(self) -> bool:
        """True if this and everything below works."""
        return self.state is HealthState.UP

    def complaints(self, above: str = "") -> Iterator[str]:
        """Yield one line for each node that is itself not up: its path, state and reason."""
        path = f"{above}/{self.name}" if above else self.name
        state, reason = self._own
        if state is not HealthState.UP:
            yield f"{path} is {state}" + (f": {reason}" if reason else "")
        for child in self.children:
            yield from child.complaints(path)

    async def refresh(self) -> HealthState:
        """Run all checks of the tree at once, each within its own time-out; returns the state after them."""
        await asyncio.gather(self._run_check(), *(child.refresh() for child in self.children))
        return self.state

    def to_dict(self) -> dict[str, Any]:
        """Return the tree as JSON takes it."""
        shown: dict[str, Any] = {"name": self.name, "state": self.state.value}
        if self.reason:
            shown["reason"] = self.reason
        if children := self.children:
            shown["children"] = [child.to_dict() for child in children]
        return shown

    async def _run_check(self) -> None:
        if self._check is None:
            return
        deadline = asyncio.timeout(self._check.timeout_s)
        try:
            async with deadline:
                await self._check.probe()
        except Exception as error:
            # Only our own deadline counts as one: a probe may raise a TimeoutError that explains more.
            late = f"no answer within {self._check.timeout_s:g} s"
            self.down(late if deadline.expired() else f"{type(error).__name__}: {error}")
        else:
            self.up()
