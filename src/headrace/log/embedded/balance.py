"""Who should own which partition of a group: a pure decision, sticky and even."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.model import TopicPartition

__all__ = ["balance"]


def balance(
    subscriptions: Mapping[str, frozenset[str]],
    partitions: Iterable[TopicPartition],
    owners: Mapping[TopicPartition, str],
) -> dict[TopicPartition, str]:
    """Give each partition a member that subscribed to its topic; move as few as evenness allows.

    Evenness: no member has two more than another that could take one of them.
    """
    wanted: dict[TopicPartition, str] = {}
    loads = dict.fromkeys(sorted(subscriptions), 0)
    orphans = []
    for at in sorted(partitions):
        owner = owners.get(at)
        if owner is not None and at.topic in subscriptions.get(owner, ()):
            wanted[at] = owner
            loads[owner] += 1
        else:
            orphans.append(at)
    for at in orphans:
        candidates = [member for member in loads if at.topic in subscriptions[member]]
        if candidates:
            _give(at, min(candidates, key=loads.__getitem__), wanted, loads)
    while (move := _best_move(subscriptions, wanted, loads)) is not None:
        at, receiver = move
        loads[wanted[at]] -= 1
        _give(at, receiver, wanted, loads)
    return wanted


def _give(at: TopicPartition, member: str, wanted: dict[TopicPartition, str], loads: dict[str, int]) -> None:
    wanted[at] = member
    loads[member] += 1


def _best_move(
    subscriptions: Mapping[str, frozenset[str]], wanted: Mapping[TopicPartition, str], loads: Mapping[str, int]
) -> tuple[TopicPartition, str] | None:
    """Find a partition whose move narrows the gap between two members, the widest gap first."""
    by_load = sorted(loads, key=loads.__getitem__)
    for giver in reversed(by_load):
        for receiver in by_load:
            if loads[giver] - loads[receiver] < 2:
                break
            for at in sorted(wanted, reverse=True):
                if wanted[at] == giver and at.topic in subscriptions[receiver]:
                    return at, receiver
    return None
