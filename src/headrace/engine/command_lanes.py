"""Whose turn it is: the commands of one aggregate wait in a lane, and the lanes of a partition take turns."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import deque
from collections.abc import Callable

from headrace.engine.batches import PendingCommand, Stage
from headrace.errors import HeadraceError

__all__ = ["CommandLane", "CommandLanes"]

# How many commands are handled before others on the event loop get their turn.
_AT_ONCE = 100


class CommandLane:
    """The commands that wait for one aggregate, in the order in which they arrived.

    It `is_running` from when its turn is fixed until nothing of it may be handled, and `is_next` while its turn has not
    come yet.
    """

    __slots__ = ("aggregate", "is_next", "is_running", "waiting")

    def __init__(self, aggregate: str) -> None:
        self.aggregate = aggregate
        self.waiting: list[PendingCommand] = []
        self.is_running = False
        self.is_next = False

    def add(self, command: PendingCommand) -> None:
        """Add a command at its place: one that is handled again comes before those that arrived after it."""
        waiting = self.waiting
        if not waiting or waiting[-1].number < command.number:
            waiting.append(command)
        else:
            insort(waiting, command, key=lambda each: each.number)

    def remove(self, command: PendingCommand) -> None:
        """Remove a command that was handled, or that nobody waits for any more."""
        waiting = self.waiting
        if waiting and waiting[0] is command:
            del waiting[0]
        elif command in waiting:
            waiting.remove(command)


class CommandLanes:
    """The lanes of the aggregates for which commands wait.

    `may_handle` returns True if the first command of a lane may be handled now. `handle` does that, when it is the
    lane's turn, and calls `go_on` when it is through.
    """

    def __init__(self, may_handle: Callable[[CommandLane], bool], handle: Callable[[CommandLane], None]) -> None:
        self._may_handle = may_handle
        self._handle = handle
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[str, CommandLane] = {}
        self._alone: set[PendingCommand] = set()
        self._ready: deque[CommandLane] = deque()
        self._is_called = False
        # Grows whenever others on the event loop had their turn.
        self.turn = 0

    def __len__(self) -> int:
        return len(self._lanes)

    def __contains__(self, aggregate: object) -> bool:
        return aggregate in self._lanes

    @property
    def has_waiting(self) -> bool:
        """True if commands wait to be handled."""
        return any(lane.waiting for lane in self._lanes.values())

    def add(self, command: PendingCommand) -> None:
        """Add a command; one that is handled again comes before those that arrived after it."""
        aggregate = command.request.aggregate
        lane = self._lanes.get(aggregate)
        if lane is None:
            lane = self._lanes[aggregate] = CommandLane(aggregate)
        command.stage = Stage.WAITING
        lane.add(command)
        if command.is_alone:
            self._alone.add(command)
        self._start(lane)

    def remove(self, command: PendingCommand) -> None:
        """Remove a command that waits and that nobody waits for."""
        if (lane := self._lanes.get(command.request.aggregate)) is not None:
            self.take(command, lane)
            if not lane.is_running:
                self.leave(lane)

    def take(self, command: PendingCommand, lane: CommandLane) -> None:
        """Take a command out of its lane; those that waited for it to be alone need not any more."""
        lane.remove(command)
        if command in self._alone:
            self._alone.discard(command)
            self.start_all()

    def fail_waiting(self, error: HeadraceError) -> None:
        """Give all callers whose commands wait an error."""
        for lane in self._lanes.values():
            for command in lane.waiting:
                command.fail(error)
            lane.waiting.clear()
        self._alone.clear()
        self._lanes = {id_: lane for id_, lane in self._lanes.items() if lane.is_running}

    def is_overtaking(self, head: PendingCommand) -> bool:
        """Return True if an earlier command waits for a batch of its own, and its aggregate is free."""
        if not self._alone:
            return False
        for alone in self._alone:
            lane = self._lanes.get(alone.request.aggregate)
            is_free = lane is not None and (lane.is_next or not lane.is_running)
            is_next = lane is not None and is_free and lane.waiting and lane.waiting[0] is alone
            if is_next and alone.number < head.number:
                return True
        return False

    # Turns.

    def start_all(self) -> None:
        """Give every lane a turn that has none and whose first command may be handled."""
        for lane in list(self._lanes.values()):
            self._start(lane)

    def go_on(self, lane: CommandLane) -> None:
        """Handle the lane's next command later, if there is one that may be handled."""
        if lane.waiting and self._may_handle(lane):
            self._make_ready(lane)
        else:
            self.leave(lane)

    def leave(self, lane: CommandLane) -> None:
        """End the lane's turn; a lane without commands is gone."""
        lane.is_running = lane.is_next = False
        if not lane.waiting and self._lanes.get(lane.aggregate) is lane:
            del self._lanes[lane.aggregate]

    def _start(self, lane: CommandLane) -> None:
        if not lane.is_running and self._may_handle(lane):
            lane.is_running = True
            self._make_ready(lane)

    def _make_ready(self, lane: CommandLane) -> None:
        """Handle the lane's next command soon. All lanes share one callback: a task for each command costs more."""
        lane.is_next = True
        self._ready.append(lane)
        if not self._is_called:
            self._is_called = True
            self._loop.call_soon(self._run_ready)

    def _run_ready(self) -> None:
        """Handle one command of each lane that is ready, up to a number of them."""
        self.turn += 1
        self._is_called = bool(self._ready)
        if self._is_called:
            self._loop.call_soon(self._run_ready)
        for _ in range(min(len(self._ready), _AT_ONCE)):
            lane = self._ready.popleft()
            if self._may_handle(lane):
                self._handle(lane)
            else:
                self.leave(lane)
