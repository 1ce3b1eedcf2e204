"""A node's way to its cluster: join it, see who else is there and what is proposed, ask for moves.

A coordinator proposes and routes; it never decides who owns a partition. What it keeps, and how sessions end, is the
backend's: a `CoordinationStore`. Those of other packages pass `headrace.testing.conformance.CoordinatorConformance`.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from headrace.cluster.members import ClusterView, MemberFacts
from headrace.cluster.planning import (
    Shared,
    drain_key,
    encode,
    last_plan,
    move_key,
    obsolete_requests,
    propose,
    view_of,
)
from headrace.errors import BadArgument, Closed, HeadraceError, TimedOut, Unavailable, WorkerFailed, WrongGroupSize
from headrace.observe import counter, get_logger
from headrace.runtime import SYSTEM_CLOCK, Backoff, Clock

__all__ = ["CoordinationStore", "Coordinator"]

PLANS = counter("cluster", "plans", "Assignments that this process proposed as the leader.")
OUTAGES = counter("cluster", "coordinator_failures", "Times that the coordinator did not answer.")

_log = get_logger(__name__)


class CoordinationStore(Protocol):
    """What all nodes of a cluster share: members with sessions, requests, and the leader's plan.

    Promises: a session that is not closed and whose process lives stays alive while the server answers; one whose
    process died ends after the session's time-out; at most one of several living processes enters with one id. What
    was written is seen by every node soon after. All methods raise Unavailable while the server does not answer.
    Does not promise: that there is only one leader; that a process with an ended session notices at once.
    """

    session_s: float

    async def enter(self, member: str, incarnation: str, facts: bytes) -> None:
        """Begin a session. Raises DuplicateNode if a living process has one with this id.

        An earlier session of a process that died is waited for, or ended at once if it is known to have died
        (its facts name the process).
        """
        ...

    async def put_facts(self, facts: bytes) -> None:
        """Replace the facts of this session's member; nothing happens if the session has ended."""
        ...

    async def leave(self) -> None:
        """End the session now."""
        ...

    async def read(self) -> Shared:
        """Return what all nodes share."""
        ...

    async def refresh(self) -> None:
        """Return when the next `read` shows all that was written, by anybody, before this call."""
        ...

    async def put_plan(self, plan: bytes, *, expected: int) -> bool:
        """Replace the plan of version `expected`; False if it has another version by now."""
        ...

    async def put_request(self, key: str, value: bytes | None) -> None:
        """Store a request, or remove it."""
        ...

    async def changed(self) -> None:
        """Return when something may have changed since the last `read`. May be cancelled."""
        ...

    async def close(self) -> None:
        """Let go of everything; a session that was not left ends by its time-out."""
        ...


class Coordinator:
    """Keeps this node in its cluster, and its view up to date.

    Promises: after a lost session it enters again automatically; while the server is away the last view stays, marked
    as old, and no error is raised. Only an id that another process has, and a group of another size, end it: `views`,
    `join` and `check` raise that error.
    """

    def __init__(
        self,
        store: CoordinationStore,
        *,
        absence_s: float = 60.0,
        threshold: float = 0.2,
        cluster_id: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._last_cluster_id = ""
        self._absence_s = absence_s
        self._threshold = threshold
        self._clock = clock
        self._backoff = Backoff(first_s=0.05, limit_s=2.0)
        self._view = ClusterView(is_old=True)
        self._facts: MemberFacts | None = None
        self._sent: MemberFacts | None = None
        self._entered = asyncio.Event()
        self._wake = asyncio.Event()
        self._turning = asyncio.Lock()
        self._news = asyncio.Condition()
        self._failure: HeadraceError | None = None
        self._is_closed = False
        self._absences: dict[str, float] = {}
        self._known: dict[str, MemberFacts] = {}
        self._task = asyncio.create_task(self._run(), name="headrace-coordinator")

    @property
    def view(self) -> ClusterView:
        """Return the newest view."""
        return self._view

    def check(self) -> None:
        """Raise the error that ended this node's membership, if one did."""
        if self._failure is not None:
            raise self._failure
        if self._is_closed:
            raise Closed("the coordinator")

    async def join(self, facts: MemberFacts, *, timeout_s: float = 60.0) -> None:
        """Become a member. Raises DuplicateNode, WrongGroupSize, or TimedOut while the server does not answer."""
        self.check()
        self._facts = facts
        self._wake.set()
        entered = asyncio.create_task(self._entered.wait())
        await asyncio.wait({entered, self._task}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        entered.cancel()
        self.check()
        if not self._entered.is_set():
            raise TimedOut(f"joining the cluster as {facts.id!r}", timeout_s, outcome_known=False)

    def update(self, facts: MemberFacts) -> None:
        """Tell the others new facts of this member: what it holds, what it owns, its weight. Returns at once."""
        if self._facts is None or (facts.id, facts.incarnation) != (self._facts.id, self._facts.incarnation):
            raise BadArgument("facts", facts.id, "they are of the member that joined, in the same incarnation")
        if facts != self._facts:
            self._facts = facts
            self._wake.set()

    async def views(self) -> AsyncIterator[ClusterView]:
        """Yield the view now, and each newer one; those that came while the caller was busy are left out."""
        seen: ClusterView | None = None
        while True:
            async with self._news:
                while self._view is seen and not self._is_over():
                    await self._news.wait()
            self.check()
            seen = self._view
            yield seen

    async def fresh_view(self) -> ClusterView:
        """Return what the server has now. Raises Unavailable if it does not answer."""
        self.check()
        await self._store.refresh()
        return view_of(await self._store.read())

    async def request_move(self, group: str, partition: int, *, to: str) -> None:
        """Ask for `to` to become the owner of a partition, after it has caught up. Raises BadArgument."""
        view = await self.fresh_view()
        if group not in view.groups:
            raise BadArgument("group", group, f"the cluster has {_listed(view.groups)}")
        if not 0 <= partition < view.groups[group].partitions:
            raise BadArgument("partition", partition, f"the group has {view.groups[group].partitions}, from 0 on")
        if to not in view.members or all(each.name != group for each in view.members[to].groups):
            serving = [name for name, facts in view.members.items() if any(g.name == group for g in facts.groups)]
            raise BadArgument("to", to, f"the members that serve the group are {_listed(serving)}")
        await self._store.put_request(move_key(group, partition), to.encode())

    async def request_drain(self, member: str) -> None:
        """Ask a member to hand over all it has; it gets nothing more until it is started again. Raises BadArgument."""
        view = await self.fresh_view()
        if member not in view.members:
            rule = f"the members are {_listed(view.members)}" if view.members else "the cluster has no members"
            raise BadArgument("member", member, rule)
        await self._store.put_request(drain_key(member), view.members[member].incarnation.encode())

    async def leave(self) -> None:
        """End this node's session; others see it at once."""
        async with self._turning:  # a session that is just being entered would outlive this otherwise
            self._facts = self._sent = None
            self._entered.clear()
            with contextlib.suppress(Unavailable):  # the session ends by its time-out then
                await self._store.leave()

    async def close(self) -> None:
        """Leave, and let go of everything."""
        if self._is_closed:
            return
        self._is_closed = True
        self._task.cancel()
        await asyncio.wait([self._task])
        await self.leave()
        await self._store.close()
        await self._tell()

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                async with self._turning:
                    await self._turn()
                failures = 0
                await self._wait_for_changes()
            except Unavailable as error:
                failures += 1
                await self._grow_old(error)
                await asyncio.sleep(self._backoff.delay_s(failures))
            except HeadraceError as error:
                await self._end(error)
                return
            except Exception as error:
                failure = WorkerFailed("headrace-coordinator", repr(error))
                failure.__cause__ = error
                await self._end(failure)
                return

    async def _turn(self) -> None:
        """Bring the store up to date with this node, and this node with the store."""
        self._wake.clear()
        shared = await self._store.read()
        if await self._send_facts(shared):
            shared = await self._store.read()
        view = view_of(shared)
        self._last_cluster_id = view.cluster_id or self._last_cluster_id
        self._check_groups(view)
        if shared.leads and self._facts is not None and await self._lead(shared, view, self._facts.id):
            view = view_of(await self._store.read())
        if view != self._view:
            self._view = view
            await self._tell()

    async def _send_facts(self, shared: Shared) -> bool:
        facts = self._facts
        if facts is None:
            return False
        if not shared.is_member:
            await self._store.enter(facts.id, facts.incarnation, encode(facts))
            _log.info("entered the cluster", member=facts.id, incarnation=facts.incarnation)
            self._entered.set()
        elif facts != self._sent:
            await self._store.put_facts(encode(facts))
        else:
            return False
        self._sent = facts
        return True

    def _check_groups(self, view: ClusterView) -> None:
        for spec in self._facts.groups if self._facts else ():
            known = view.groups.get(spec.name)
            if known is not None and known.partitions != spec.partitions:
                raise WrongGroupSize(spec.name, spec.partitions, known.partitions)

    async def _lead(self, shared: Shared, view: ClusterView, leader: str) -> bool:
        """Propose a plan if the last one does not fit any more; True if something was written."""
        absent, awaited = self._look_for_absent(view)
        plan = propose(
            view,
            leader=leader,
            # If the server has lost everything, the nodes bring it back, and the cluster is still the same one.
            cluster_id=self._cluster_id or view.cluster_id or self._last_cluster_id or uuid.uuid4().hex,
            absent=absent,
            awaited=awaited,
            threshold=self._threshold,
        )
        obsolete = list(obsolete_requests(view, shared.requests))
        for key in obsolete:
            await self._store.put_request(key, None)
        if plan == last_plan(view):
            return bool(obsolete)
        PLANS.inc()
        if await self._store.put_plan(encode(plan), expected=shared.version):
            self._last_cluster_id = plan.cluster_id
        return True

    def _look_for_absent(self, view: ClusterView) -> tuple[dict[str, MemberFacts], frozenset[str]]:
        """Return the members that are away too shortly to count as gone, and those whose places are kept."""
        now_s = self._clock.monotonic_s()
        self._known.update(view.members)
        placed = {name for each in view.placements.values() for one in each for name in (*one.replicas, *one.awaited)}
        self._absences = {
            name: self._absences.get(name, now_s) for name in (placed | self._known.keys()) - view.members.keys()
        }
        # A store that was away, or a machine that slept, loses all sessions at once, and they return at once.
        flicker_s = self._store.session_s / 3
        absent = {
            name: self._known[name]
            for name, since_s in self._absences.items()
            if name in self._known and now_s - since_s < flicker_s
        }
        gone = self._absences.keys() - absent.keys()
        for name in gone:
            self._known.pop(name, None)
        return absent, frozenset(name for name in gone if now_s - self._absences[name] < self._absence_s)

    async def _wait_for_changes(self) -> None:
        changed = asyncio.create_task(self._store.changed())
        woken = asyncio.create_task(self._wake.wait())
        try:
            # Sessions end, and absences are over, without anybody writing anything.
            await asyncio.wait({changed, woken}, timeout=self._store.session_s / 4, return_when=asyncio.FIRST_COMPLETED)
            if changed.done():
                changed.result()
        finally:
            for task in (changed, woken):
                task.cancel()
            await asyncio.wait({changed, woken})

    async def _end(self, failure: HeadraceError) -> None:
        _log.error("membership ended", reason=str(failure), exc_info=failure.__cause__)
        with contextlib.suppress(HeadraceError):  # its session ends by its time-out then
            await self._store.leave()
        self._failure = failure
        await self._tell()

    async def _grow_old(self, error: Unavailable) -> None:
        OUTAGES.inc()
        if not self._view.is_old or self._view.revision == 0:
            _log.warning("the coordinator does not answer", reason=str(error))
        if not self._view.is_old:
            self._view = msgspec.structs.replace(self._view, is_old=True)
            await self._tell()

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    def _is_over(self) -> bool:
        return self._is_closed or self._failure is not None


def _listed(names: object) -> str:
    listed = ", ".join(sorted(map(repr, names)))  # type: ignore[call-overload]
    return listed or "none"
