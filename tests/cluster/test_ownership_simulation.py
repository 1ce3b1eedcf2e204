"""Random histories: one linear history for each key, whatever happens; a missing rule is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from tests.cluster.simulation import SUSPICIONS, run_history
from tests.cluster.virtual_time import node_of_task

from headrace.cluster import claimant, lease, owner, ownership
from headrace.cluster.epochs import Epoch
from headrace.cluster.tail import seconds
from headrace.testing.plugin import Size

_PARTS = 6


@pytest.mark.parametrize("part", range(_PARTS))
def test_every_key_has_one_linear_history(size: Size, part: int) -> None:
    """C7, C14, C15: a read sees every acknowledged write, none is lost or doubled, nothing uncommitted is seen."""
    for seed in range(part, size(300, 10_000), _PARTS):
        problems = run_history(seed)
        assert not problems, f"history {seed}: {problems[0]} ({len(problems)} problems)"


@contextmanager
def _no_wait() -> Iterator[None]:
    with patch.object(claimant, "wait_until_s", lambda *_, **__: float("-inf")):
        yield


@contextmanager
def _replies_in_the_wait() -> Iterator[None]:
    async def open_gate(self: owner.Owner, committed: owner.Committed) -> None:
        """Let it pass."""

    with patch.object(owner.Owner, "reply_gate", open_gate):
        yield


@contextmanager
def _lease_counted_from_the_answer() -> Iterator[None]:
    renewed = lease.NodeLease.renewed

    def late(self: lease.NodeLease, *, begun_s: float) -> None:
        renewed(self, begun_s=seconds(node_of_task()))

    with patch.object(lease.NodeLease, "renewed", late):
        yield


@contextmanager
def _lease_taken_after_the_epoch() -> Iterator[None]:
    def reordered(claim: ownership.Claim, *args: Any, lease_id: str) -> ownership.Step:
        step = ownership.next_step(claim, *args, lease_id=lease_id)
        if isinstance(step, ownership.TakeLease) and not claim.is_written and claim.before is not None:
            return ownership.WriteEpoch(Epoch(claim.before.epoch + 1, *args, lease_id))
        return step

    with patch.object(claimant, "next_step", reordered):
        yield


@contextmanager
def _lease_never_taken() -> Iterator[None]:
    with patch.object(ownership, "_has_lease_to_end", lambda *_: False):
        yield


@pytest.mark.parametrize(
    ("weakened", "harms"),
    [
        (_no_wait, SUSPICIONS),
        (_replies_in_the_wait, SUSPICIONS),
        (_lease_counted_from_the_answer, ("slow and suspect",)),
        (_lease_taken_after_the_epoch, ("cut and suspect",)),
        (_lease_never_taken, SUSPICIONS),
    ],
)
def test_the_oracle_sees_a_rule_that_is_missing(weakened: Callable[[], Any], harms: Sequence[str]) -> None:
    """Without one of the rules some history goes wrong, and is found."""
    with weakened():
        assert any(run_history(seed, harms) for seed in range(300))
