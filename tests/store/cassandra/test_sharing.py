"""What shares a request: partitions on the same nodes, a few at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.store.cassandra.requests import SHARED_PARTITIONS, RequestShare, shared

NODES = st.sampled_from([None, "a", "b"])
SHARES = st.lists(st.tuples(NODES, st.integers(0, 120)), max_size=60)


@given(SHARES, st.integers(0, 100))
def test_each_goes_once_with_others_on_the_same_nodes_and_within_the_limits(
    asked: list[tuple[str | None, int]], most: int
) -> None:
    """Nothing is lost or doubled. What is on unknown nodes, or larger than a request, goes alone."""
    groups = list(shared((RequestShare(nodes, size, nr) for nr, (nodes, size) in enumerate(asked)), most=most))
    assert sorted(nr for group in groups for nr in group) == list(range(len(asked)))
    for group in groups:
        nodes, sizes = {asked[nr][0] for nr in group}, [asked[nr][1] for nr in group]
        assert len(nodes) == 1
        assert len(group) == 1 or (None not in nodes and sum(sizes) <= most and len(group) <= SHARED_PARTITIONS)


def test_a_full_request_does_not_wait_for_the_last_partition() -> None:
    """Requests travel while the next are made."""
    seen: list[int] = []

    def shares() -> list[RequestShare[int]]:
        return [RequestShare("a", 1, nr) for nr in range(3 * SHARED_PARTITIONS)]

    groups = shared((seen.append(share.item) or share for share in shares()), most=1000)  # type: ignore[func-returns-value]
    assert next(groups) == list(range(SHARED_PARTITIONS))
    assert len(seen) == SHARED_PARTITIONS + 1
