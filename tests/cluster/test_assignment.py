"""Which member holds which partition."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec
import pytest

from headrace.cluster.assignment import Candidate, assign
from headrace.cluster.members import AnnouncedOwner, GroupSpec, Holding, Placement, Placements
from headrace.testing.plugin import Size

NAMES = [f"node-{nr:02d}" for nr in range(50)]


def group(partitions: int, replicas: int = 1) -> GroupSpec:
    return GroupSpec(name="accounts", partitions=partitions, replicas=replicas)


class Cluster:
    """Members that do what the assignment proposes: they catch up, take over and announce it."""

    def __init__(self, spec: GroupSpec, members: Iterable[str], **weights: float) -> None:
        self.spec = spec
        self.members = {name: Candidate(id=name, weight=weights.get(name.replace("-", "_"), 1.0)) for name in members}
        self.placements: Placements = ()
        self.before: Placements = ()
        self.owners: dict[int, AnnouncedOwner] = {}
        self.moves: dict[int, str] = {}
        self.awaited: frozenset[str] = frozenset()
        self.gone: dict[str, Candidate] = {}
        self.moved = 0

    def decide(self) -> None:
        self.before = self.placements
        self.placements = self.decision(list(self.members.values()))
        self.moved += sum(a.replicas != b.replicas for a, b in zip(self.before, self.placements, strict=False))

    def decision(self, members: list[Candidate]) -> Placements:
        return assign(self.spec, members, self.placements, owners=self.owners, moves=self.moves, awaited=self.awaited)

    def obey(self, catching_up: bool = True) -> None:
        """Let every replica catch up, and every proposed owner that is online take over."""
        for partition, placement in enumerate(self.placements):
            for name in placement.replicas if catching_up else ():
                self.hold(name, partition)
            if not placement.replicas:
                continue
            first = placement.replicas[0]
            held = self.members[first].holdings.get(partition)
            known = self.owners.get(partition)
            if held is not None and held.is_online and (known is None or known.member != first):
                self.owners[partition] = AnnouncedOwner(first, (known.epoch if known else 0) + 1)
        self.wipe()

    def wipe(self) -> None:
        """Members drop the data of partitions that were moved away from them; what they brought along they keep."""
        for name, member in self.members.items():
            moved = {n for n, each in enumerate(self.before) if name in each.replicas} - self.partitions_of(name)
            kept = {n: each for n, each in member.holdings.items() if n not in moved}
            self.members[name] = msgspec.structs.replace(member, holdings=kept)

    def settle(self, most: int = 400) -> int:
        """Decide and obey until nothing changes; return how many decisions that took."""
        for turn in range(most):
            before = self.placements, dict(self.owners), dict(self.members)
            self.decide()
            self.obey()
            if before == (self.placements, self.owners, self.members):
                return turn
        raise AssertionError(f"still changing after {most} decisions")

    def hold(self, name: str, partition: int, *, is_online: bool = True) -> None:
        held = Holding(group="accounts", partition=partition, offset=100, is_online=is_online)
        member = self.members[name]
        self.members[name] = msgspec.structs.replace(member, holdings={**member.holdings, partition: held})

    def leave(self, name: str) -> None:
        self.gone[name] = self.members.pop(name)

    def come_back(self, name: str) -> None:
        """The member is back with its checkpoints, which are behind by now."""
        member = self.gone.pop(name)
        old = {n: msgspec.structs.replace(each, is_online=False, offset=50) for n, each in member.holdings.items()}
        self.members[name] = msgspec.structs.replace(member, holdings=old)

    def drain(self, name: str) -> None:
        self.members[name] = msgspec.structs.replace(self.members[name], is_draining=True)

    def partitions_of(self, name: str) -> set[int]:
        return {n for n, placement in enumerate(self.placements) if name in placement.replicas}

    def owned_by(self, name: str) -> set[int]:
        return {n for n, placement in enumerate(self.placements) if placement.replicas[:1] == (name,)}


def replicas_are_apart(placements: Placements, *, wanted: int) -> bool:
    return all(len(set(each.replicas)) == len(each.replicas) == wanted for each in placements)


@pytest.mark.parametrize("replicas", range(1, 11))
def test_replicas_are_on_distinct_nodes(replicas: int, size: Size) -> None:
    """C3: whenever there are enough nodes. A partition's place does not depend on how many come after it."""
    nodes = range(1, 51) if size.is_full else (1, 2, 3, replicas - 1, replicas, replicas + 1, 50)
    for count in {each for each in nodes if each}:
        members = [Candidate(id=name) for name in NAMES[:count]]
        placements = assign(group(size(60, 200), replicas), members)
        assert replicas_are_apart(placements, wanted=min(replicas, count))
        assert assign(group(7, replicas), members) == placements[:7]
        loads = Counter(name for each in placements for name in each.replicas)
        assert max(loads.values()) - min(loads[name] for name in NAMES[:count]) <= 1


def test_histories_keep_replicas_apart_and_settle(size: Size) -> None:
    """C3, C5: whoever comes, goes, drains and returns, in any order and half caught up."""
    for seed in range(size(150, 5000)):
        rng = random.Random(seed)
        live_through(rng, nodes=rng.randint(1, 9), replicas=rng.randint(1, 4), partitions=rng.randint(1, 25))


def live_through(rng: random.Random, *, nodes: int, replicas: int, partitions: int) -> None:
    cluster = Cluster(group(partitions, replicas), NAMES[:nodes])
    for _ in range(12):
        happen(cluster, rng)
        listed = rng.sample(list(cluster.members.values()), len(cluster.members))
        elsewhere = cluster.decision(listed)
        cluster.decide()
        assert cluster.placements == elsewhere, "the members listed in another order made a difference"
        assert all(len(set(each.replicas)) == len(each.replicas) for each in cluster.placements)
        if not all(each.is_draining for each in cluster.members.values()):
            assert all(each.replicas for each in cluster.placements)
        cluster.obey(catching_up=rng.random() < 0.5)
    cluster.awaited = frozenset()
    cluster.settle()
    takers = [each for each in cluster.members.values() if not each.is_draining]
    if takers:
        assert replicas_are_apart(cluster.placements, wanted=min(replicas, len(takers)))
        assert not any(set(each.replicas) - {taker.id for taker in takers} for each in cluster.placements)


def happen(cluster: Cluster, rng: random.Random) -> None:
    choice = rng.randrange(5)
    present = sorted(cluster.members)
    if choice == 0 and len(present) > 1:
        cluster.leave(gone := rng.choice(present))
        if rng.random() < 0.5:
            cluster.awaited |= {gone}
    if choice == 1 and cluster.gone:
        cluster.come_back(rng.choice(sorted(cluster.gone)))
    if choice == 2:
        cluster.drain(rng.choice(present))
    if choice == 3:
        cluster.moves = {rng.randrange(cluster.spec.partitions): rng.choice(present)}
    if choice == 4:
        cluster.awaited = frozenset()


def test_every_node_makes_the_same_choice() -> None:
    """C2: one replica is proposed as master, the rest are standbys, in whatever order the members are listed."""
    members = [Candidate(id=name) for name in NAMES[:5]]
    placements = assign(group(16, 3), members)
    for seed in range(5):
        assert assign(group(16, 3), random.Random(seed).sample(members, 5)) == placements
    owned = Counter(each.replicas[0] for each in placements)
    assert max(owned.values()) - min(owned.values()) <= 1


def test_a_node_that_leaves_moves_only_its_own_partitions() -> None:
    """C5: every other replica stays where it is, and so does every other owner."""
    cluster = Cluster(group(24, 2), NAMES[:4])
    cluster.settle()
    before, lost = cluster.placements, cluster.partitions_of("node-01")
    cluster.leave("node-01")
    cluster.decide()
    for partition, (old, new) in enumerate(zip(before, cluster.placements, strict=True)):
        assert (old.replicas == new.replicas) == (partition not in lost)
        assert set(old.replicas) - {"node-01"} <= set(new.replicas)
        if old.replicas[0] != "node-01":
            assert new.replicas[0] == old.replicas[0]


def test_a_node_that_returns_gets_its_own_back() -> None:
    """C5: after its partitions were given to others, one by one, each after it has caught up."""
    cluster = Cluster(group(24, 2), NAMES[:4])
    cluster.settle()
    own = cluster.partitions_of("node-01")
    cluster.leave("node-01")
    cluster.settle()
    cluster.come_back("node-01")
    moves = 0
    while cluster.partitions_of("node-01") != own and moves < 200:
        before = cluster.placements
        cluster.decide()
        changed = [n for n, (a, b) in enumerate(zip(before, cluster.placements, strict=True)) if a != b]
        assert sum(each.leaving is not None for each in cluster.placements) <= 1
        assert len([n for n in changed if set(before[n].replicas) - set(cluster.placements[n].replicas)]) <= 1
        cluster.obey()
        moves += 1
    cluster.settle()
    assert cluster.partitions_of("node-01") == own
    assert 5 <= len(cluster.owned_by("node-01")) <= 7


def test_a_node_that_is_awaited_keeps_its_places() -> None:
    """C5: a short absence copies nothing; owners fail over, and the node finds its places as they were."""
    cluster = Cluster(group(24, 2), NAMES[:4])
    cluster.settle()
    own = cluster.partitions_of("node-01")
    cluster.awaited = frozenset({"node-01"})
    cluster.leave("node-01")
    cluster.decide()
    assert all(len(each.replicas) == (1 if n in own else 2) for n, each in enumerate(cluster.placements))
    cluster.come_back("node-01")
    cluster.decide()
    assert cluster.partitions_of("node-01") == own
    cluster.leave("node-01")
    cluster.awaited = frozenset()
    cluster.decide()
    assert replicas_are_apart(cluster.placements, wanted=2)


def test_a_partition_without_any_replica_does_not_wait_for_an_awaited_node() -> None:
    """C5: with one replica somebody else must have it at once."""
    cluster = Cluster(group(8), NAMES[:2])
    cluster.settle()
    cluster.awaited = frozenset({"node-01"})
    cluster.leave("node-01")
    cluster.decide()
    assert all(each.replicas == ("node-00",) for each in cluster.placements)


def test_nothing_moves_below_the_threshold() -> None:
    """C5: a small imbalance is cheaper than a move; a large one is not."""
    cluster = Cluster(group(21), NAMES[:2])
    cluster.settle()
    cluster.moved = 0
    cluster.settle()
    assert cluster.moved == 0
    cluster.members["node-02"] = Candidate(id="node-02")
    cluster.settle()
    loads = [len(cluster.partitions_of(name)) for name in NAMES[:3]]
    assert min(loads) >= 5
    assert max(loads) - min(loads) <= 3


def test_load_follows_the_weights() -> None:
    """C5: a node of twice the weight holds twice as much, at first and after it was changed."""
    cluster = Cluster(group(40), NAMES[:3], node_00=2.0)
    cluster.settle()
    assert len(cluster.partitions_of("node-00")) == 20
    cluster.members["node-00"] = msgspec.structs.replace(cluster.members["node-00"], weight=0.5)
    cluster.settle()
    assert 7 <= len(cluster.partitions_of("node-00")) <= 10


@pytest.mark.parametrize("light", [1e-9, 1e-3])
def test_weights_may_be_far_apart(light: float) -> None:
    """C5: a node that shall hold next to nothing beside heavy ones does so, and the plan is made."""
    cluster = Cluster(group(12), NAMES[:3], node_00=9e8, node_01=9e8, node_02=light)
    cluster.settle()
    assert len(cluster.partitions_of("node-02")) <= 1
    assert len(cluster.partitions_of("node-00")) >= 5


def test_a_move_waits_until_the_new_replica_has_caught_up() -> None:
    """C4: the old replica stays, and the owner with it, until the new one is online and has announced itself."""
    cluster = Cluster(group(4), NAMES[:1])
    cluster.settle()
    cluster.members["node-01"] = Candidate(id="node-01")
    cluster.decide()
    (moving,) = [n for n, each in enumerate(cluster.placements) if each.leaving]
    assert cluster.placements[moving].replicas == ("node-00", "node-01")
    waiting = cluster.placements
    cluster.decide()
    assert cluster.placements == waiting
    cluster.hold("node-01", moving)
    cluster.decide()
    assert cluster.placements[moving].replicas == ("node-01", "node-00"), "proposed, and the old one still there"
    cluster.decide()
    assert cluster.placements[moving].leaving == "node-00", "not announced yet"
    cluster.owners[moving] = AnnouncedOwner("node-01", 2)
    cluster.decide()
    assert cluster.placements[moving].replicas == ("node-01",)


def test_a_draining_node_hands_over_and_gets_nothing() -> None:
    """C5: owners go at once to standbys that are online, replicas one by one; nothing new arrives."""
    cluster = Cluster(group(12, 2), NAMES[:4])
    cluster.settle()
    cluster.drain("node-02")
    before = cluster.partitions_of("node-02")
    cluster.decide()
    assert cluster.owned_by("node-02") == set()
    assert cluster.partitions_of("node-02") == before
    cluster.settle()
    assert cluster.partitions_of("node-02") == set()
    assert replicas_are_apart(cluster.placements, wanted=2)


def test_a_standby_stays_until_its_substitute_has_caught_up() -> None:
    """C4: a partition has all its replicas online before one of them goes."""
    cluster = Cluster(group(1, 2), NAMES[:3])
    cluster.settle()
    standby = cluster.placements[0].replicas[1]
    cluster.drain(standby)
    cluster.decide()
    (substitute,) = set(NAMES[:3]) - set(cluster.placements[0].replicas) or {cluster.placements[0].replicas[2]}
    for _ in range(3):
        cluster.decide()
        assert standby in cluster.placements[0].replicas
    cluster.hold(substitute, 0)
    cluster.decide()
    assert standby not in cluster.placements[0].replicas
    assert substitute in cluster.placements[0].replicas


def test_the_last_node_that_drains_keeps_serving() -> None:
    """C5: there is nobody to hand over to."""
    cluster = Cluster(group(3), NAMES[:1])
    cluster.settle()
    cluster.drain("node-00")
    cluster.settle()
    assert cluster.owned_by("node-00") == {0, 1, 2}


def test_a_requested_move_makes_the_member_the_owner() -> None:
    """C5: the partition goes where an operator wants it, after it has caught up there."""
    cluster = Cluster(group(6, 2), NAMES[:4])
    cluster.settle()
    (to,) = [name for name in NAMES[:4] if name not in cluster.placements[3].replicas][:1]
    cluster.moves = {3: to}
    cluster.settle()
    assert cluster.placements[3].replicas[0] == to
    assert replicas_are_apart(cluster.placements, wanted=2)


def test_a_standby_that_took_over_is_taken_as_the_owner() -> None:
    """C2: the log decides; the assignment follows and does not ask for the partition back."""
    cluster = Cluster(group(6, 2), NAMES[:3])
    cluster.settle()
    first, standby = cluster.placements[2].replicas
    cluster.owners[2] = AnnouncedOwner(standby, 7)
    cluster.decide()
    assert cluster.placements[2].replicas == (standby, first)
    assert cluster.placements[2].epoch == 7


def test_the_successor_is_online_and_most_advanced() -> None:
    """C2: an owner that is gone is followed by the standby that has the most, and never by one that catches up."""
    held: Mapping[str, tuple[int, bool]] = {"node-01": (900, False), "node-02": (500, True), "node-03": (600, True)}
    members = [
        Candidate(id=name, holdings={0: Holding(group="accounts", partition=0, offset=offset, is_online=is_online)})
        for name, (offset, is_online) in held.items()
    ]
    last = (Placement(replicas=("node-00", "node-01", "node-02", "node-03")),)
    (placement,) = assign(group(1, 4), members, last)
    assert placement.replicas == ("node-03", "node-02", "node-01")
