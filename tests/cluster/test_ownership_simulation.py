"""Random histories: one linear history for each key, whatever happens; a missing rule is seen."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from tests.cluster.simulation import (
    CHAINS,
    HARMS,
    SUSPICIONS,
    Replica,
    StarvedWorld,
    UnevenWorld,
    World,
    run_history,
)
from tests.cluster.virtual_time import SimulatedNode, node_of_task, run_virtually

from headrace.cluster import LeaseTerms, claimant, lease, lease_length, owner, ownership
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


@pytest.mark.parametrize("part", range(_PARTS))
def test_leases_of_different_lengths_keep_one_linear_history(size: Size, part: int) -> None:
    """C14, C15: lengths differ and change, owners are deposed in a row, and processes get no processor for long."""
    for seed in range(part, size(180, 10_000), _PARTS):
        problems = run_history(seed, (*HARMS, *CHAINS, "starve"), UnevenWorld)
        assert not problems, f"history {seed}: {problems[0]} ({len(problems)} problems)"


def test_calls_succeed_on_starved_processors_once_leases_have_grown(size: Size) -> None:
    """C15: processes that stand still for up to 1.5 s, again and again, or commits of 0.7 s, need a longer lease."""
    for seed in range(size(20, 500)):
        problems = run_history(seed, (), StarvedWorld)
        assert not problems, f"history {seed}: {problems[0]} ({len(problems)} problems)"


def test_the_check_of_liveness_sees_leases_that_do_not_grow() -> None:
    """With a lease of half a second most of these histories have long times without a call that succeeds."""
    with patch.object(lease_length.LeaseLength, "ran_out", lambda _: False):
        assert sum(bool(run_history(seed, (), StarvedWorld)) for seed in range(10)) >= 8


def test_a_shorter_lease_begins_without_a_hole_in_service() -> None:
    """C14: the longer one is renewed until the Epochs name the shorter one, and every call in between is answered."""

    async def longest_silence() -> tuple[float, float, int | None]:
        SimulatedNode.all_run = False
        world = World(1, (), nodes=0)
        world.weather.lost = world.weather.late = 0.0
        replica = Replica(world.brokers, "n0", "n0-0", random.Random(1), LeaseTerms(calm_s=3.0))
        replica.keeper.length.lease_s = 4.0
        replica.owner.propose(0)
        while not replica.owner.may_serve():  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(0.01)
        loop, longest_s = asyncio.get_running_loop(), 0.0
        until_s = served_s = loop.time()
        while loop.time() < until_s + 30:
            await asyncio.sleep(0.002)
            if replica.owner.may_serve():
                served_s = loop.time()
            longest_s = max(longest_s, loop.time() - served_s)
        found = longest_s, (await replica.keeper.held()).lease_s, replica.owner.epoch
        await world._end()
        return found

    silence_s, lease_s, epoch = run_virtually(longest_silence)
    assert (lease_s, epoch) == (0.5, 4), "4, 2, 1 and 0.5 s, each with an Epoch"
    assert silence_s < 0.1


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
    def reordered(claim: ownership.Claim, *args: Any, **own: Any) -> ownership.Step:
        step = ownership.next_step(claim, *args, **own)
        if isinstance(step, ownership.TakeLease) and not claim.is_written and claim.before is not None:
            return ownership.WriteEpoch(Epoch(claim.before.epoch + 1, *args, **own))
        return step

    with patch.object(claimant, "next_step", reordered):
        yield


@contextmanager
def _lease_never_taken() -> Iterator[None]:
    with patch.object(ownership, "_has_lease_to_end", lambda *_: False):
        yield


@contextmanager
def _own_length_instead_of_the_named_one() -> Iterator[None]:
    def own(self: lease_length.LeaseTerms, lease_s: float) -> float:
        return self.lease_s * self.patience

    with patch.object(lease_length.LeaseTerms, "patience_s", own):
        yield


@contextmanager
def _epochs_name_only_their_own_length() -> Iterator[None]:
    with patch.object(claimant, "earlier_lease_s", lambda *_, **__: 0.0):
        yield


@contextmanager
def _reads_under_one_lease_while_the_next_epoch_is_written() -> Iterator[None]:
    with patch.object(claimant.Claimant, "named", property(lambda _: set(), lambda *_: None), create=True):
        yield


@pytest.mark.parametrize(
    "weakened",
    [
        _own_length_instead_of_the_named_one,
        _epochs_name_only_their_own_length,
        _reads_under_one_lease_while_the_next_epoch_is_written,
    ],
)
def test_the_oracle_sees_that_a_longer_lease_is_not_waited_for(weakened: Callable[[], Any]) -> None:
    """Whoever waits goes by the lengths that the log names, those of all owners that were deposed in a row."""
    with weakened():
        assert any(run_history(seed, CHAINS, UnevenWorld) for seed in range(300))


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
