"""Random histories: every acknowledged command once and in order, whatever happens; a missing rule is seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from tests.cluster.simulation import HARMS, SUSPICIONS, run_history
from tests.engine.simulation import EngineWorld

from headrace.cluster import owner
from headrace.cluster.ownership import Outcome
from headrace.engine.batch_commits import BatchCommits, tell
from headrace.engine.batches import PendingCommand
from headrace.engine.command_queue import CommandQueue
from headrace.engine.commands import CommandRequest
from headrace.engine.handling import CommandHandling
from headrace.engine.places import InputPlaces
from headrace.testing.plugin import Size

_PARTS = 4


@pytest.mark.parametrize("part", range(_PARTS))
def test_every_acknowledged_command_is_in_the_journal_once_and_in_order(size: Size, part: int) -> None:
    """N23, N28, N30, N34, N39, N40: nothing is lost, doubled or told "not done" and done; timers fire once."""
    for seed in range(part, size(70, 10_000), _PARTS):
        problems = run_history(seed, HARMS, EngineWorld)
        assert not problems, f"history {seed}: {problems[0]} ({len(problems)} problems)"


@contextmanager
def _ids_are_not_looked_at() -> Iterator[None]:
    with patch.object(CommandHandling, "admit", lambda *_: None):
        yield


@contextmanager
def _forgotten_ids_are_not_too_late() -> Iterator[None]:
    admit = CommandHandling.admit

    def without_since(self: Any, record: Any, request: CommandRequest, floor: Any) -> Any:
        known = record.find(request.command_id) if record is not None and request.command_id else None
        return admit(self, record, request, floor) if known is not None else None

    with patch.object(CommandHandling, "admit", without_since):
        yield


@contextmanager
def _unanswered_commits_count_as_not_done() -> Iterator[None]:
    with patch.object(owner, "outcome_of", lambda *_, **__: Outcome.NOT_COMMITTED):
        yield


@contextmanager
def _what_stands_on_a_failed_batch_is_kept() -> Iterator[None]:
    def again_alone(self: Any, batch: Any) -> None:
        self._queue.again(batch.commands)

    with patch.object(BatchCommits, "_repeat", again_alone):
        yield


@contextmanager
def _answers_without_a_lease() -> Iterator[None]:
    async def at_once(self: Any, command: PendingCommand, outcome: Any, *, is_repeated: bool) -> None:
        await asyncio.sleep(0)
        tell(command, outcome, self.last, is_repeated=is_repeated)

    with patch.object(BatchCommits, "_leave_under_lease", at_once):
        yield


@contextmanager
def _replies_before_the_commit() -> Iterator[None]:
    commit = BatchCommits._commit

    async def early(self: Any, batch: Any) -> None:
        for command, outcome, is_repeated in batch.outcomes:
            if command.work is None:
                tell(command, outcome, batch.name, is_repeated=is_repeated)
        await commit(self, batch)

    with patch.object(BatchCommits, "_commit", early):
        yield


@contextmanager
def _records_that_are_read_again_are_done_again() -> Iterator[None]:
    with patch.object(InputPlaces, "is_done", lambda *_: False):
        yield


@contextmanager
def _places_of_lost_batches_are_kept() -> Iterator[None]:
    with patch.object(InputPlaces, "clear", lambda *_: None):
        yield


@contextmanager
def _timers_fire_as_the_index_says() -> Iterator[None]:
    newest = CommandQueue._newest

    async def committed(self: Any, aggregate: str) -> Any:
        record, stored = await newest(self, aggregate), await self._load(aggregate)
        is_late = record is not None and stored is not None and len(stored.timers) > len(record.timers)
        return msgspec.structs.replace(record, timers=stored.timers) if is_late else record

    with patch.object(CommandQueue, "_newest", committed):
        yield


@pytest.mark.parametrize(
    ("weakened", "harms", "first"),  # histories before the first one that is told go well without the rule
    [
        (_ids_are_not_looked_at, HARMS, 0),
        (_forgotten_ids_are_not_too_late, HARMS, 5),
        (_unanswered_commits_count_as_not_done, HARMS, 72),
        (_what_stands_on_a_failed_batch_is_kept, HARMS, 10),
        (_answers_without_a_lease, SUSPICIONS, 54),
        (_replies_before_the_commit, HARMS, 0),
        (_records_that_are_read_again_are_done_again, HARMS, 19),
        (_places_of_lost_batches_are_kept, HARMS, 1),
        (_timers_fire_as_the_index_says, HARMS, 0),
    ],
)
def test_the_oracle_sees_a_rule_that_is_missing(weakened: Callable[[], Any], harms: Sequence[str], first: int) -> None:
    """N23: without one of the rules some history goes wrong, and is found."""
    with weakened():
        assert any(run_history(seed, harms, EngineWorld) for seed in range(first, first + 300))
