"""Which member holds which partition: a pure function of the members and of the last assignment.

Promises: replicas of a partition are on distinct members, as many as there are up to the group's number; the same
input gives the same result on every node; a member that leaves moves only its own partitions; one that returns with
its data gets them back; other moves start only past a threshold of imbalance, one at a time, and a replica goes only
after its substitute has caught up. A member that drains gets nothing and hands over what it has.
Does not promise: who owns a partition. The first replica is a proposal; the partition's log decides.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from zlib import crc32

import msgspec

from headrace.cluster.members import AnnouncedOwner, GroupSpec, Holding, Placement, Placements

__all__ = ["Candidate", "assign"]

_NOTHING = Holding(group="-", partition=0)


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A member, as far as the assignment of one group is concerned; `holdings` by partition."""

    id: str
    weight: float = 1.0
    is_draining: bool = False
    holdings: Mapping[int, Holding] = {}


def assign(
    group: GroupSpec,
    members: Iterable[Candidate],
    last: Placements = (),
    *,
    owners: Mapping[int, AnnouncedOwner] | None = None,
    moves: Mapping[int, str] | None = None,
    awaited: frozenset[str] = frozenset(),
    threshold: float = 0.2,
) -> Placements:
    """Return the placement of every partition of the group.

    `owners` are the announced ones, `moves` the members that partitions were asked to move to, `awaited` members that
    left a short time ago: their places stay free while another replica is there. `threshold` is the share by which a
    member may be above or below its fair load before something moves.
    """
    plan = _Plan(group, members, owners or {}, moves or {})
    plan.take_over(last, awaited)
    plan.repair()
    plan.choose_owners()
    plan.drop_leavers()
    plan.start_a_move(threshold)
    return plan.result()


class _Plan:
    """The assignment in the making: mutable, and made again for each decision."""

    def __init__(
        self,
        group: GroupSpec,
        members: Iterable[Candidate],
        owners: Mapping[int, AnnouncedOwner],
        moves: Mapping[int, str],
    ) -> None:
        self.group = group
        self.members = {member.id: member for member in sorted(members, key=lambda each: each.id)}
        self.takers = [member for member in self.members.values() if not member.is_draining]
        self.wanted = min(group.replicas, len(self.takers))
        self.owners = owners
        can_take = {member.id for member in self.takers}
        self.moves = {n: to for n, to in moves.items() if n < group.partitions and to in can_take}
        # Where an operator wants a partition, balance has no say.
        self.balanced = set(range(group.partitions)) - self.moves.keys()
        self.replicas: list[list[str]] = [[] for _ in range(group.partitions)]
        self.awaited: list[tuple[str, ...]] = [()] * group.partitions
        self.leaving: list[str | None] = [None] * group.partitions
        self.epochs = [0] * group.partitions
        self.proposed: list[str | None] = [None] * group.partitions
        self.load = dict.fromkeys(self.members, 0)
        self.owned = dict.fromkeys(self.members, 0)

    def take_over(self, last: Placements, awaited: frozenset[str]) -> None:
        """Keep what was decided before, as far as its members are still there."""
        for partition, before in enumerate(last[: self.group.partitions]):
            returned = [each for each in before.awaited if each in self.members and not self._drains(each)]
            kept = [each for each in before.replicas if each in self.members]
            self.replicas[partition] = kept + [each for each in returned if each not in kept]
            absent = (each for each in (*before.replicas, *before.awaited) if each not in self.members)
            self.awaited[partition] = tuple(dict.fromkeys(each for each in absent if each in awaited))
            self.leaving[partition] = self._still_leaving(partition, before.leaving)
            self.epochs[partition] = before.epoch
            self.proposed[partition] = before.replicas[0] if before.replicas else None
            for each in self.replicas[partition]:
                self.load[each] += 1

    def repair(self) -> None:
        """Fill the places of members that are gone; a place that is kept for one that is awaited stays free."""
        for partition, replicas in enumerate(self.replicas):
            while self._is_short_of_replicas(partition):
                self._add(partition, self._best_taker(partition))
            # A partition that has all its replicas keeps no place for anybody.
            if len(replicas) >= self.wanted:
                self.awaited[partition] = ()
            # Nobody goes without a substitute; it may have left before it was ready.
            if len(replicas) <= self.wanted:
                self.leaving[partition] = None

    def choose_owners(self) -> None:
        """Put the proposed owner first in each partition: the last one where nothing speaks against it."""
        for partition in range(self.group.partitions):
            first = self._staying_owner(partition)
            if first is not None:
                self._put_first(partition, first)
        for partition, replicas in enumerate(self.replicas):
            if self._staying_owner(partition) is None and replicas:
                self._put_first(partition, self._successor(partition))

    def drop_leavers(self) -> None:
        """Let replicas go whose substitutes have caught up, and mark those that are too many."""
        for partition, replicas in enumerate(self.replicas):
            leaver = self.leaving[partition]
            if leaver is None and len(replicas) > self.wanted > 0:
                leaver = self.leaving[partition] = self._least_useful(partition)
            if leaver is not None and self._can_go(partition, leaver):
                replicas.remove(leaver)
                self.load[leaver] -= 1
                self.leaving[partition] = None

    def start_a_move(self, threshold: float) -> None:
        """Start the one most useful move, unless another one is under way."""
        if any(self.leaving) or any(map(self._awaits_handover, range(self.group.partitions))):
            return
        started = self._start_requested() or self._start_draining()
        if started or any(not self._is_online(n, each) for n, on in enumerate(self.replicas) for each in on):
            return
        if not self._start_returning() and not self._start_balancing(threshold):
            self._start_handover(threshold)

    def result(self) -> Placements:
        """Return the assignment."""
        return tuple(self._placement(partition) for partition in range(self.group.partitions))

    def _placement(self, partition: int) -> Placement:
        replicas = self.replicas[partition]
        # Rank: those that have caught up come first among the standbys, else the order stays.
        standbys = sorted(replicas[1:], key=lambda each: not self._is_online(partition, each))
        announced = self.owners.get(partition)
        is_confirmed = announced is not None and replicas and announced.member == replicas[0]
        epoch = announced.epoch if is_confirmed and announced else self.epochs[partition]
        return Placement(
            replicas=(*replicas[:1], *standbys),
            awaited=self.awaited[partition],
            leaving=self.leaving[partition],
            epoch=epoch,
        )

    # Repairing

    def _still_leaving(self, partition: int, leaver: str | None) -> str | None:
        """Return the leaver unless it is gone, wanted by an operator, or left without a substitute that stays."""
        replicas = self.replicas[partition]
        if leaver not in replicas or leaver == self.moves.get(partition):
            return None
        return leaver if any(each != leaver and not self._drains(each) for each in replicas) else None

    def _is_short_of_replicas(self, partition: int) -> bool:
        replicas = self.replicas[partition]
        staying = [each for each in replicas if each != self.leaving[partition]]
        if not any(each.id not in replicas for each in self.takers):
            return False
        kept_free = len(self.awaited[partition]) if staying else 0
        return len(staying) + kept_free < self.wanted

    def _best_taker(self, partition: int) -> str:
        """Return who gets a new replica: the least loaded member, one with data of the partition before all others."""
        replicas = self.replicas[partition]
        free = [each for each in self.takers if each.id not in replicas]
        return min(free, key=lambda each: self._taker_order(partition, each)).id

    def _taker_order(self, partition: int, member: Candidate) -> tuple[bool, float, int, int, str]:
        has_data = partition in member.holdings
        offset = member.holdings[partition].offset if has_data else -1
        share = self._share(self.load, member.id, 1)
        return (not has_data, share, -offset, self._chance(partition, member.id), member.id)

    def _chance(self, partition: int, member: str) -> int:
        """Break ties, differently for each partition and group, alike on every node."""
        return crc32(f"{self.group.name}/{partition}/{member}".encode())

    # Owners

    def _staying_owner(self, partition: int) -> str | None:
        """Return the owner that was proposed before, or that took over since, if it can go on."""
        current = self._current(partition)
        replicas = self.replicas[partition]
        if current is None or current not in replicas:
            return None
        target = self.moves.get(partition)
        if target is not None and target in replicas and self._can_take_over(partition, target):
            return target
        is_going = self._drains(current) or current == self.leaving[partition]
        others = [each for each in replicas if each != current and self._can_take_over(partition, each)]
        return None if is_going and others else current

    def _current(self, partition: int) -> str | None:
        """Return who owns the partition as far as is known: a standby may have taken over without being asked."""
        announced = self.owners.get(partition)
        if (
            announced is not None
            and announced.epoch > self.epochs[partition]
            and announced.member in self.replicas[partition]
        ):
            return announced.member
        return self.proposed[partition]

    def _can_take_over(self, partition: int, member: str) -> bool:
        is_staying = not self._drains(member) and member != self.leaving[partition]
        return is_staying and self._is_online(partition, member)

    def _successor(self, partition: int) -> str:
        """Return who follows an owner that is gone: online and most advanced first, else any."""
        return min(self.replicas[partition], key=lambda each: self._successor_order(partition, each))

    def _successor_order(self, partition: int, member: str) -> tuple[bool, bool, int, float, int, str]:
        held = self.members[member].holdings.get(partition, _NOTHING)
        is_going = self._drains(member) or member == self.leaving[partition]
        share = (self.owned[member] + 1) / self.members[member].weight
        return (is_going, not held.is_online, -held.offset, share, self._chance(partition, member), member)

    def _put_first(self, partition: int, owner: str) -> None:
        replicas = self.replicas[partition]
        if owner != self._current(partition):
            # What is announced up to now is older than this choice; what is announced later is a take-over.
            announced = self.owners.get(partition)
            self.epochs[partition] = max(self.epochs[partition], announced.epoch if announced else 0)
        replicas.remove(owner)
        replicas.insert(0, owner)
        self.owned[owner] += 1

    # Leaving

    def _least_useful(self, partition: int) -> str:
        replicas = self.replicas[partition]

        def order(member: str) -> tuple[bool, bool, bool, float, str]:
            is_owner = member in (replicas[0], self.moves.get(partition))
            share = self.load[member] / self.members[member].weight
            return (not self._drains(member), is_owner, self._is_online(partition, member), -share, member)

        return min(replicas, key=order)

    def _can_go(self, partition: int, leaver: str) -> bool:
        replicas = self.replicas[partition]
        announced = self.owners.get(partition)
        if replicas[0] == leaver or (announced is not None and announced.member == leaver):
            return False
        online = [each for each in replicas if each != leaver and self._is_online(partition, each)]
        return len(online) >= max(1, self.wanted)

    # Moving

    def _awaits_handover(self, partition: int) -> bool:
        """Return True while the announced owner is a living one that was asked to hand over and has not yet."""
        announced = self.owners.get(partition)
        replicas = self.replicas[partition]
        return (
            announced is not None
            and bool(replicas)
            and announced.member in self.members
            and announced.member != replicas[0]
        )

    def _start_requested(self) -> bool:
        for partition, to in sorted(self.moves.items()):
            if to not in self.replicas[partition]:
                self._replace(partition, self.replicas[partition][:1], to)
                return True
        return False

    def _start_draining(self) -> bool:
        for partition, replicas in enumerate(self.replicas):
            going = [each for each in replicas if self._drains(each)]
            if going and any(each.id not in replicas for each in self.takers):
                self._replace(partition, going[:1], self._best_taker(partition))
                return True
        return False

    def _start_returning(self) -> bool:
        """Give a partition back to a member that has its data and less to do than one of its replicas."""
        for member in self.takers:
            for partition in sorted(self.balanced & member.holdings.keys()):
                if member.id not in self.replicas[partition]:
                    busiest = self._busiest(self.replicas[partition])
                    if self._is_better(busiest, member.id):
                        self._replace(partition, [busiest], member.id)
                        return True
        return False

    def _start_balancing(self, threshold: float) -> bool:
        if not self._is_past(threshold, self.load, self.group.partitions * self.wanted):
            return False
        by_load = sorted(self.takers, key=lambda each: (self.load[each.id] / each.weight, each.id))
        for busy in reversed(by_load):
            for idle in by_load:
                if not self._is_better(busy.id, idle.id):
                    break
                if (partition := self._movable(busy.id, idle)) is not None:
                    self._replace(partition, [busy.id], idle.id)
                    return True
        return False

    def _start_handover(self, threshold: float) -> bool:
        """Hand one partition to another of its replicas if owners are spread too unevenly."""
        if not self._is_past(threshold, self.owned, self.group.partitions):
            return False
        best: tuple[float, int, str] | None = None
        for partition in sorted(self.balanced):
            replicas = self.replicas[partition]
            for to in replicas[1:]:
                gain = self._share(self.owned, replicas[0], 0) - self._share(self.owned, to, 1)
                if gain > 0 and self._can_take_over(partition, to) and (best is None or gain > best[0]):
                    best = (gain, partition, to)
        if best is not None:
            self._put_first(best[1], best[2])
        return best is not None

    def _replace(self, partition: int, leaver: Sequence[str], to: str) -> None:
        self._add(partition, to)
        if leaver and len(self.replicas[partition]) > self.wanted:
            self.leaving[partition] = leaver[0]

    def _add(self, partition: int, member: str) -> None:
        self.replicas[partition].append(member)
        self.load[member] += 1

    def _movable(self, busy: str, idle: Candidate) -> int | None:
        """Return a partition to move; a standby before an owner, because that one costs callers nothing."""
        found = [n for n in self.balanced if busy in self.replicas[n] and idle.id not in self.replicas[n]]
        return min(found, key=lambda n: (self.replicas[n][0] == busy, self._chance(n, idle.id), n), default=None)

    def _busiest(self, replicas: Iterable[str]) -> str:
        return max(replicas, key=lambda each: (self._share(self.load, each, 0), each))

    def _is_better(self, busy: str, idle: str) -> bool:
        """Return True if a move evens the load out; a move back would not, so nothing goes back and forth."""
        return self._share(self.load, busy, 0) > self._share(self.load, idle, 1)

    def _share(self, load: Mapping[str, int], member: str, more: int) -> float:
        return (load[member] + more) / self.members[member].weight

    def _is_past(self, threshold: float, load: Mapping[str, int], total: int) -> bool:
        fair = dict(_fair_shares(self.takers, total, self.group.partitions))
        return any(abs(load[each] - share) > max(1.0, threshold * share) for each, share in fair.items())

    def _drains(self, member: str) -> bool:
        return self.members[member].is_draining

    def _is_online(self, partition: int, member: str) -> bool:
        return self.members[member].holdings.get(partition, _NOTHING).is_online


def _fair_shares(members: Sequence[Candidate], total: int, most: int) -> Iterator[tuple[str, float]]:
    """Yield what each member should hold by its weight, when none can hold more than `most`."""
    left = float(total)
    heaviest = sorted(members, key=lambda each: (-each.weight, each.id))
    # Added up from the lightest on: what is left of a sum after subtracting the heavy ones would be nothing.
    weights = list(itertools.accumulate(each.weight for each in reversed(heaviest)))
    for member, weight in zip(heaviest, reversed(weights), strict=True):
        share = min(float(most), left * member.weight / weight)
        yield member.id, share
        left -= share
