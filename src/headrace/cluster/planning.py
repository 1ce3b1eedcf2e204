"""What the leader of a cluster proposes, and what every node sees of it: pure functions of what all nodes share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

import msgspec

from headrace.cluster.assignment import Candidate, assign
from headrace.cluster.members import AnnouncedOwner, ClusterView, GroupSpec, MemberFacts, Placements
from headrace.errors import IncompatibleData
from headrace.observe import get_logger
from headrace.runtime import has_ended

__all__ = [
    "AssignmentPlan",
    "Shared",
    "decode_facts",
    "drain_key",
    "encode",
    "has_died",
    "last_plan",
    "move_key",
    "obsolete_requests",
    "propose",
    "view_of",
]

_log = get_logger(__name__)

_DRAIN = "drain"
_MOVE = "move"


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """What a coordinator keeps for all nodes, as it was read at one moment.

    `members` are the facts of those whose sessions are alive, `requests` what operators asked for, `plan` what the
    leader proposed last, under a version that grows. `is_member` says whether this node's own session is alive,
    `leads` whether this node is to propose.
    """

    members: Mapping[str, bytes] = {}
    requests: Mapping[str, bytes] = {}
    plan: bytes | None = None
    version: int = 0
    is_member: bool = False
    leads: bool = False


class AssignmentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the leader proposes to all nodes. `cluster_id` is the first leader's choice and never changes."""

    leader: str
    cluster_id: str = ""
    groups: Mapping[str, GroupSpec] = {}
    placements: Mapping[str, Placements] = {}


_plans = msgspec.msgpack.Decoder(AssignmentPlan)
_facts = msgspec.msgpack.Decoder(MemberFacts)


def encode(value: AssignmentPlan | MemberFacts) -> bytes:
    """Return the bytes that a coordinator keeps."""
    return msgspec.msgpack.encode(value)


# Views are made again and again, mostly of the same facts.
@lru_cache(maxsize=256)
def decode_facts(data: bytes) -> MemberFacts:
    """Return the facts that a member announced."""
    return _facts.decode(data)


def has_died(data: bytes) -> bool:
    """Return True if the member that told this certainly runs no more, though its session may go on."""
    try:
        return has_ended(decode_facts(data).process)
    except msgspec.DecodeError:  # of another version, perhaps: it proves nothing
        return False


def drain_key(member: str) -> str:
    """Return the key of a request to drain a member; its value is the member's incarnation."""
    return f"{_DRAIN}/{member}"


def move_key(group: str, partition: int) -> str:
    """Return the key of a request to move a partition; its value is the member to move it to."""
    return f"{_MOVE}/{group}/{partition}"


def view_of(shared: Shared) -> ClusterView:
    """Return what a node makes of what all nodes share."""
    members = dict(_members(shared.members))
    plan = _plan(shared.plan)
    return ClusterView(
        revision=shared.version,
        cluster_id=plan.cluster_id if plan else "",
        members=members,
        groups=plan.groups if plan else {},
        placements=plan.placements if plan else {},
        owners=_owners(members),
        draining=frozenset(_draining(members, shared.requests)),
        moves=_moves(shared.requests),
        leader=plan.leader if plan else None,
    )


def propose(
    view: ClusterView,
    *,
    leader: str,
    cluster_id: str = "",
    absent: Mapping[str, MemberFacts],
    awaited: frozenset[str],
    threshold: float,
) -> AssignmentPlan:
    """Return the plan for the members of the view, and for those that are `absent` too shortly to count as gone.

    The places of `awaited` members are kept free. A group that no member serves stays as it was.
    """
    members = {**absent, **view.members}
    groups = dict(sorted({**view.groups, **dict(_groups(members, view.groups))}.items()))
    placements: dict[str, Placements] = {}
    for name, group in groups.items():
        candidates = list(_candidates(group, members, view.draining))
        last = view.placements.get(name, ())
        if not candidates:
            placements[name] = last
            continue
        placements[name] = assign(
            group,
            candidates,
            last,
            owners=view.owners.get(name),
            moves=view.moves.get(name),
            awaited=awaited,
            threshold=threshold,
        )
    return AssignmentPlan(leader=leader, cluster_id=cluster_id or view.cluster_id, groups=groups, placements=placements)


def last_plan(view: ClusterView) -> AssignmentPlan:
    """Return the plan that a view was made of."""
    return AssignmentPlan(
        leader=view.leader or "", cluster_id=view.cluster_id, groups=view.groups, placements=view.placements
    )


def obsolete_requests(view: ClusterView, requests: Mapping[str, bytes]) -> Iterator[str]:
    """Yield the keys of requests that are done, or that nobody is there for any more."""
    for key, value in requests.items():
        kind, _, rest = key.partition("/")
        if kind == _DRAIN and rest in view.members and view.members[rest].incarnation != value.decode():
            yield key
        if kind == _MOVE and _is_move_over(view, rest, value.decode()):
            yield key


def _members(shared: Mapping[str, bytes]) -> Iterator[tuple[str, MemberFacts]]:
    """Yield the members whose facts are understood; one of another version must not stop all others."""
    for name, data in sorted(shared.items()):
        try:
            yield name, decode_facts(data)
        except msgspec.DecodeError as error:
            _log.warning("a member is not understood", member=name, reason=str(error))


def _plan(data: bytes | None) -> AssignmentPlan | None:
    try:
        return None if data is None else _plans.decode(data)
    except msgspec.DecodeError as error:
        raise IncompatibleData("the cluster's plan", f"that can't be read ({error})", "its own") from error


def _is_move_over(view: ClusterView, what: str, to: str) -> bool:
    group, _, number = what.rpartition("/")
    placements = view.placements.get(group, ())
    if not number.isdigit() or to not in view.members or to in view.draining or int(number) >= len(placements):
        return True
    owner = view.owners.get(group, {}).get(int(number))
    placement = placements[int(number)]
    return owner is not None and owner.member == to and placement.replicas[:1] == (to,) and placement.leaving is None


def _owners(members: Mapping[str, MemberFacts]) -> dict[str, dict[int, AnnouncedOwner]]:
    owners: dict[str, dict[int, AnnouncedOwner]] = {}
    for name, facts in members.items():
        for held in facts.holdings:
            known = owners.setdefault(held.group, {}).get(held.partition)
            if held.epoch > (known.epoch if known else 0):
                owners[held.group][held.partition] = AnnouncedOwner(name, held.epoch)
    return owners


def _draining(members: Mapping[str, MemberFacts], requests: Mapping[str, bytes]) -> Iterator[str]:
    """Yield the members that drain. A member that was started again since it was asked to does not."""
    for name, facts in members.items():
        if requests.get(drain_key(name)) == facts.incarnation.encode():
            yield name


def _moves(requests: Mapping[str, bytes]) -> dict[str, dict[int, str]]:
    moves: dict[str, dict[int, str]] = {}
    for key, value in requests.items():
        kind, _, rest = key.partition("/")
        if kind == _MOVE:
            group, _, partition = rest.rpartition("/")
            if partition.isdigit():
                moves.setdefault(group, {})[int(partition)] = value.decode()
    return moves


def _groups(members: Mapping[str, MemberFacts], known: Mapping[str, GroupSpec]) -> Iterator[tuple[str, GroupSpec]]:
    """Yield each group that members serve: with the cluster's number of partitions, and the most replicas asked for."""
    asked: dict[str, list[GroupSpec]] = {}
    for _, facts in sorted(members.items()):
        for spec in facts.groups:
            asked.setdefault(spec.name, []).append(spec)
    for name, specs in asked.items():
        partitions = known[name].partitions if name in known else specs[0].partitions
        yield name, GroupSpec(name=name, partitions=partitions, replicas=max(each.replicas for each in specs))


def _candidates(group: GroupSpec, members: Mapping[str, MemberFacts], draining: frozenset[str]) -> Iterator[Candidate]:
    for name, facts in members.items():
        if any(each.name == group.name and each.partitions == group.partitions for each in facts.groups):
            yield Candidate(
                id=name,
                weight=facts.weight,
                is_draining=name in draining,
                holdings={each.partition: each for each in facts.holdings if each.group == group.name},
            )
