"""What the console says of a cluster: its nodes, who owns and holds what, who has left, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from headrace.cluster import ClusterView, MemberFacts

__all__ = ["Departure", "Departures", "cluster_as_json", "cluster_problems"]

_HOUR_MS = 3_600_000
_SHOWN_PARTITIONS = 8


class Departure(NamedTuple):
    """A node that is not there any more. With `is_drained` it had handed over all it had, as an operator wished."""

    id: str
    address: str
    seen_ms: int
    is_drained: bool


class Departures:
    """Remembers for an hour the nodes that served something and left, and who returned is forgotten."""

    def __init__(self, *, kept_ms: int = _HOUR_MS, most: int = 100) -> None:
        self._kept_ms = kept_ms
        self._most = most
        self._there: dict[str, Departure] = {}
        self._gone: dict[str, Departure] = {}
        self._owners: dict[tuple[str, int], str] = {}

    def look(self, view: ClusterView, now_ms: int) -> None:
        """Compare the view with what was there before; an old view says nothing."""
        if view.is_old:
            return
        there = {
            facts.id: Departure(facts.id, facts.address, now_ms, facts.id in view.draining)
            for facts in view.members.values()
            if facts.groups
        }
        left = {name: last._replace(seen_ms=now_ms) for name, last in self._there.items() if name not in there}
        kept = {name: last for name, last in self._gone.items() if last.seen_ms > now_ms - self._kept_ms}
        gone = {name: last for name, last in {**kept, **left}.items() if name not in view.members}
        self._gone = dict(list(gone.items())[-self._most :])
        self._there = there
        partitions = [(group, number) for group, spec in view.groups.items() for number in range(spec.partitions)]
        owners = {each: _owner_of(view, *each) or self._owners.get(each) for each in partitions}
        self._owners = {each: owner for each, owner in owners.items() if owner is not None}

    def last_owner(self, group: str, partition: int) -> str | None:
        """Return the member that was last seen to serve a partition."""
        return self._owners.get((group, partition))

    @property
    def gone(self) -> list[Departure]:
        """The nodes that left, the last one first."""
        return sorted(self._gone.values(), key=lambda each: each.seen_ms, reverse=True)


def cluster_problems(view: ClusterView, departures: Departures) -> Iterator[dict[str, Any]]:
    """Yield what is wrong with a cluster, the worst first: a level and a sentence each."""
    if view.is_old:
        yield _problem("bad", "The coordinator does not answer: what is shown of nodes is old, and nothing moves.")
    for group, spec in view.groups.items():
        missing = [n for n in range(spec.partitions) if _owner_of(view, group, n) is None]
        if missing:
            yield _problem("bad", f"Nobody serves {_counted(missing, spec.partitions)} of {group}.")
    for each in departures.gone:
        if not each.is_drained:
            yield _problem("bad", f"Node {each.id} is gone.", at_ms=each.seen_ms)
    for group, spec in view.groups.items():
        thin = [n for n in range(spec.partitions) if len(_online(view, group, n)) < _wanted(view, group)]
        if thin:
            yield _problem(
                "warn", f"Copies are missing or catching up for {_counted(thin, spec.partitions)} of {group}."
            )


def cluster_as_json(view: ClusterView, departures: Departures, *, node_id: str | None) -> dict[str, Any]:
    """Return the cluster as the console shows it."""
    return {
        "node": node_id,
        "is_old": view.is_old,
        "nodes": [_node(view, facts, node_id) for _, facts in sorted(view.members.items())],
        "gone": [each._asdict() for each in departures.gone],
        "groups": [
            {
                "name": group,
                "replicas": spec.replicas,
                "partitions": [_partition(view, departures, group, number) for number in range(spec.partitions)],
            }
            for group, spec in sorted(view.groups.items())
        ],
    }


def _node(view: ClusterView, facts: MemberFacts, node_id: str | None) -> dict[str, Any]:
    owned = sum(owner.member == facts.id for owners in view.owners.values() for owner in owners.values())
    return {
        "id": facts.id,
        "address": facts.address,
        "weight": facts.weight,
        "owns": owned,
        "holds": len(facts.holdings),
        "groups": [group.name for group in facts.groups],
        "is_draining": facts.id in view.draining,
        "is_leader": facts.id == view.leader,
        "is_here": facts.id == node_id,
    }


def _partition(view: ClusterView, departures: Departures, group: str, number: int) -> dict[str, Any]:
    owner = view.owners.get(group, {}).get(number)
    present = _owner_of(view, group, number)
    placements = view.placements.get(group, ())
    placement = placements[number] if number < len(placements) else None
    online = _online(view, group, number)
    replicas = placement.replicas if placement else ()
    return {
        "partition": number,
        "owner": present,
        "former_owner": departures.last_owner(group, number) if present is None else None,
        "epoch": owner.epoch if owner is not None else None,
        "standbys": [{"id": name, "state": _standby_state(view, name, online)} for name in replicas if name != present],
        "awaited": list(placement.awaited) if placement else [],
        "leaving": placement.leaving if placement else None,
        "moves_to": view.moves.get(group, {}).get(number),
    }


def _standby_state(view: ClusterView, name: str, online: set[str]) -> str:
    if name not in view.members:
        return "gone"
    return "online" if name in online else "catching up"


def _owner_of(view: ClusterView, group: str, number: int) -> str | None:
    """Return the member that serves a partition; None if nobody was announced, or the one that was is not there."""
    owner = view.owners.get(group, {}).get(number)
    return owner.member if owner is not None and owner.member in view.members else None


def _online(view: ClusterView, group: str, number: int) -> set[str]:
    return {
        name
        for name, facts in view.members.items()
        for each in facts.holdings
        if (each.group, each.partition) == (group, number) and (each.is_online or each.epoch)
    }


def _wanted(view: ClusterView, group: str) -> int:
    """Return how many copies a partition should have: with fewer nodes than replicas there can't be more.

    A node that is gone counts as long as its place is kept for it.
    """
    serving = {name for name, facts in view.members.items() if any(each.name == group for each in facts.groups)}
    awaited = {name for placement in view.placements.get(group, ()) for name in placement.awaited}
    return min(view.groups[group].replicas, len(serving | awaited))


def _counted(numbers: list[int], of: int) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN_PARTITIONS])) + (", …" if len(numbers) > _SHOWN_PARTITIONS else "")
    return f"{len(numbers)} of {of} partitions ({shown})"


def _problem(level: str, text: str, *, at_ms: int | None = None) -> dict[str, Any]:
    return {"level": level, "text": text, **({"at_ms": at_ms} if at_ms is not None else {})}
