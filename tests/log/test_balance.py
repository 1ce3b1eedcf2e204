"""The assignment of partitions to the members of a group: even, sticky, complete."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.log.embedded.membership import balance
from headrace.model import TopicPartition

TOPICS = ("a", "b", "c")
partitions = st.sets(st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 7)), max_size=20)
subscriptions = st.dictionaries(
    st.sampled_from(["m1", "m2", "m3", "m4"]), st.frozensets(st.sampled_from(TOPICS), min_size=1), max_size=4
)


@given(subscriptions, partitions, st.data())
def test_every_partition_has_one_able_owner_and_nobody_is_overloaded(
    members: dict[str, frozenset[str]], topics: set[TopicPartition], data: st.DataObject
) -> None:
    """Whatever the owners were before: complete, only to subscribers, and no move would make it more even."""
    owners = (
        data.draw(st.dictionaries(st.sampled_from(sorted(topics)), st.sampled_from(["m1", "m2", "gone"])))
        if topics
        else {}
    )
    wanted = balance(members, topics, owners)
    for at in topics:
        able = {name for name, subscribed in members.items() if at.topic in subscribed}
        assert wanted.get(at) in able if able else at not in wanted
    loads = {name: sum(owner == name for owner in wanted.values()) for name in members}
    for at, owner in wanted.items():
        for other, subscribed in members.items():
            assert at.topic not in subscribed or loads[owner] - loads[other] < 2


@given(st.integers(1, 5), st.integers(1, 20))
def test_a_member_that_leaves_moves_only_its_own(members: int, count: int) -> None:
    """The partitions of those who stay stay."""
    names = {f"m{n}": frozenset("t") for n in range(members)}
    everything = [TopicPartition("t", n) for n in range(count)]
    before = balance(names, everything, {})
    rest = {name: topics for name, topics in names.items() if name != "m0"}
    after = balance(rest, everything, before)
    assert all(after[at] == owner for at, owner in before.items() if owner != "m0")


@given(st.integers(1, 5), st.integers(1, 20))
def test_balancing_what_is_balanced_changes_nothing(members: int, count: int) -> None:
    """A second look moves no partition."""
    names = {f"m{n}": frozenset("t") for n in range(members)}
    once = balance(names, [TopicPartition("t", n) for n in range(count)], {})
    assert balance(names, once, once) == once
