"""Which nodes are asked, how often, and how many copies a keyspace keeps: decisions that need no server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from cassandra import InvalidRequest, OperationTimedOut
from cassandra.cluster import EXEC_PROFILE_DEFAULT
from cassandra.policies import FallthroughRetryPolicy
from cassandra.query import SimpleStatement

from headrace.config import CassandraStoreSettings
from headrace.store.cassandra.address import parse
from headrace.store.cassandra.retries import with_retries
from headrace.store.cassandra.schema import copies_for, single_copy_dcs
from headrace.store.cassandra.session import Session, make_cluster

ADDRESS = parse("cassandra://127.0.0.1:1/ks")


def test_a_silent_node_is_passed_over() -> None:
    """FM4: replicas are tried in any order, others are asked soon, and a node that falls silent is noticed."""
    cluster = make_cluster(ADDRESS, CassandraStoreSettings(attempt_timeout_s=3, speculate_after_s=0.25))
    profile = cluster.profile_manager.profiles[EXEC_PROFILE_DEFAULT]
    assert profile.load_balancing_policy.shuffle_replicas
    plan = profile.speculative_execution_policy.new_plan(None, None)
    assert [plan.next_execution(None) for _ in range(3)] == [0.25, 0.25, -1]
    assert cluster.idle_heartbeat_interval + cluster.idle_heartbeat_timeout < 10
    unset = make_cluster(ADDRESS, CassandraStoreSettings(speculate_after_s=None))
    policy = unset.profile_manager.profiles[EXEC_PROFILE_DEFAULT].speculative_execution_policy
    assert policy.new_plan(None, None).next_execution(None) == -1


class Recorder:
    """Takes the place of the driver's session and of its prepared queries: answers at once, and keeps what it got."""

    def __init__(self) -> None:
        self.statements: list[Any] = []
        self._paging_state = self._col_names = self._col_types = None

    def bound(self, _: Sequence[object]) -> SimpleStatement:
        return SimpleStatement("x", is_idempotent=True)

    def execute_async(self, statement: Any, *_: object, **__: object) -> Recorder:
        self.statements.append(statement)
        return self

    def add_callbacks(
        self, done: Callable[..., None], _: object, *, callback_args: tuple[object, ...], errback_args: object
    ) -> None:
        done([(True,)], *callback_args)


async def test_only_what_may_be_repeated_is_asked_of_several_nodes() -> None:
    """FM4: a lightweight transaction that the driver repeats finds its own first attempt, and says that it lost."""
    recorder = Recorder()
    session = Session(ADDRESS, CassandraStoreSettings(), None, recorder)
    session._prepared["q"] = recorder  # type: ignore[assignment]
    await session.read("read", "q", ())
    await session.write("write", session.bind("q", ()))
    assert [statement.is_idempotent for statement in recorder.statements] == [True, True]
    assert (await session.decide("decide", "q", ()))[0]
    decision = recorder.statements[-1]
    assert not decision.is_idempotent
    assert isinstance(decision.retry_policy, FallthroughRetryPolicy)


class Attempts:
    """Raises one error after another, then returns an answer; keeps the time-outs it was given."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures = list(failures)
        self.timeouts_s: list[float] = []

    async def __call__(self, timeout_s: float) -> str:
        self.timeouts_s.append(timeout_s)
        if self.failures:
            raise self.failures.pop(0)
        return "done"


async def test_a_passing_error_is_retried_and_the_others_are_not() -> None:
    """FM4: attempts go on until the answer, each with no more time than is left; a refused request is not repeated."""
    settings = CassandraStoreSettings(attempt_timeout_s=0.5, request_timeout_s=30)
    passing = Attempts(OperationTimedOut(), OperationTimedOut())
    assert await with_retries(passing, settings, operation="read", is_repeatable=True) == "done"
    assert passing.timeouts_s == [0.5, 0.5, 0.5]
    refused, decision = Attempts(InvalidRequest()), Attempts(OperationTimedOut())
    with pytest.raises(InvalidRequest):
        await with_retries(refused, settings, operation="read", is_repeatable=True)
    with pytest.raises(OperationTimedOut):
        await with_retries(decision, settings, operation="decide", is_repeatable=False)
    assert len(refused.timeouts_s) == len(decision.timeouts_s) == 1


async def test_retries_end_at_the_deadline_with_the_last_error() -> None:
    """FM4: an outage that outlives the time-out of the request is raised."""
    settings = CassandraStoreSettings(attempt_timeout_s=0.05, request_timeout_s=0.05)
    outage = Attempts(*(OperationTimedOut() for _ in range(100)))
    with pytest.raises(OperationTimedOut):
        await with_retries(outage, settings, operation="read", is_repeatable=True)
    assert 1 <= len(outage.timeouts_s) < 100
    assert all(timeout_s <= 0.05 for timeout_s in outage.timeouts_s)


@pytest.mark.parametrize(
    ("settings", "nodes", "copies"),
    [
        ({}, {"dc1": 1}, {"dc1": 1}),
        ({}, {"dc1": 2, "dc2": 5}, {"dc1": 2, "dc2": 3}),
        ({"replication_factor": 2}, {"dc1": 5, "dc2": 3}, {"dc1": 2, "dc2": 2}),
        ({"replication": {"dc1": 5}, "replication_factor": 2}, {"dc1": 5, "dc2": 3}, {"dc1": 5}),
    ],
)
def test_a_keyspace_has_as_many_copies_as_there_are_nodes_up_to_three(
    settings: dict[str, Any], nodes: dict[str, int], copies: dict[str, int]
) -> None:
    """FM2: by data centre; what is set wins."""
    assert copies_for(CassandraStoreSettings(**settings), nodes) == copies


@pytest.mark.parametrize(
    ("replication", "nodes", "lonely"),
    [
        ({"class": "NetworkTopologyStrategy", "dc1": "1"}, {"dc1": 1}, []),
        ({"class": "NetworkTopologyStrategy", "dc1": "1", "dc2": "3"}, {"dc1": 3, "dc2": 3}, ["dc1"]),
        ({"class": "NetworkTopologyStrategy", "dc1": "3"}, {"dc1": 3, "dc2": 3}, []),
        ({"class": "SimpleStrategy", "replication_factor": "1"}, {"dc1": 2}, ["dc1"]),
    ],
)
def test_one_copy_on_several_nodes_is_noticed(
    replication: dict[str, str], nodes: dict[str, int], lonely: list[str]
) -> None:
    """FM2: in each data centre that keeps the keyspace at all; one node can't keep more."""
    assert single_copy_dcs(replication, nodes) == lonely
