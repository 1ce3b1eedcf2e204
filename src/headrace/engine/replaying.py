"""New code tried on what an engine has stored: which events, states and decisions are not what they were.

A replay writes nothing. Decisions can be tried only where the journal keeps commands (`keep_commands`): each is handled
again on the state before it, at the time at which it was handled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from headrace.engine.auditing import EngineAuditor, JournalEvents, Suspect
from headrace.engine.context import Decision
from headrace.engine.folding import AggregateDifference, AggregateFold, StoredAggregate, difference_of
from headrace.engine.handling import CommandHandling
from headrace.engine.journal_records import KeptCommand, command_in
from headrace.engine.models import Engine
from headrace.engine.records import AggregateRecord, AggregateValues
from headrace.engine.topics import RecordLimits
from headrace.errors import HeadraceError, NotStorable, Refused
from headrace.log import Log
from headrace.model import StoredEvent
from headrace.serde import Registry

__all__ = [
    "AggregateReplay",
    "EngineReplay",
    "ReplayDifference",
    "ReplayKind",
    "ReplayTally",
    "add_replay",
    "appends_in",
    "replay_some",
    "state_difference",
]

S = TypeVar("S")
ReplayKind: TypeAlias = Literal["upcast", "event", "state", "decision"]

# A replay writes nothing, so that nothing is too large for it.
_NO_LIMITS = RecordLimits(1 << 62, 1 << 62)


class ReplayDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not what was stored: of which aggregate, from which event on, what it was, and what it is now.

    Kinds: `upcast`, an event that an upcaster changes; `event`, one that can't be read or applied; `state`, a state or
    a version that differs; `decision`, a command that leads to something else.
    """

    kind: ReplayKind
    id: str
    seq_nr: int | None = None
    stored: Any = None
    now: Any = None
    about: str = ""

    def __str__(self) -> str:
        place = self.id if self.seq_nr is None else f"{self.id}, event {self.seq_nr}"
        about = f"{self.about}: " if self.about else ""
        return f"{self.kind}: {place}: {about}{_json(self.stored)} was stored, now {_json(self.now)}"


class ReplayTally(msgspec.Struct):
    """What was replayed so far: counts, and the first differences of each kind."""

    aggregates: int = 0
    events: int = 0
    commands: int = 0
    counts: dict[str, int] = {}
    first: dict[str, list[ReplayDifference]] = {}

    def add(self, difference: ReplayDifference, limit: int) -> None:
        """Count a difference, and keep it if it is one of the first of its kind."""
        self.counts[difference.kind] = self.counts.get(difference.kind, 0) + 1
        kept = self.first.setdefault(difference.kind, [])
        if len(kept) < limit:
            kept.append(difference)


class EngineReplay(msgspec.Struct, frozen=True):
    """The result of a replay: what was tried, how many differences of each kind there are, and the first of them."""

    engine: str
    aggregates: int
    events: int
    commands: int
    counts: Mapping[str, int]
    first: Mapping[str, Sequence[ReplayDifference]]

    @property
    def is_same(self) -> bool:
        """True if the code makes of the journals what was stored. An upcast event alone is no difference."""
        return all(kind == "upcast" for kind in self.counts)

    @classmethod
    def of(cls, engine: str, tallies: Iterable[ReplayTally], *, limit: int) -> EngineReplay:
        """Return what several tasks found together."""
        aggregates = events = commands = 0
        counts: Counter[str] = Counter()
        first: dict[str, list[ReplayDifference]] = {}
        for tally in tallies:
            aggregates, events = aggregates + tally.aggregates, events + tally.events
            commands += tally.commands
            counts.update(tally.counts)
            for kind, some in tally.first.items():
                first.setdefault(kind, []).extend(some)
        shown = {kind: sorted(some, key=_order)[:limit] for kind, some in first.items()}
        return cls(engine, aggregates, events, commands, dict(counts), shown)


class AggregateReplay(Generic[S]):
    """Replays one aggregate: its appends in order, then its state."""

    def __init__(self, engine: Engine[S], values: AggregateValues, aggregate: str) -> None:
        self.aggregate = aggregate
        self.differences: list[ReplayDifference] = []
        self.events = self.commands = 0
        self._engine = engine
        self._values = values
        self._fold = AggregateFold(engine, aggregate)
        self._handling = CommandHandling(engine, values, 0, _NO_LIMITS)
        self._is_broken = False

    def command_of(self, append: Sequence[StoredEvent]) -> KeptCommand | None:
        """Return the command that an append keeps; None if it keeps none, or if nothing more can be replayed."""
        return None if self._is_broken else command_in(append[0].metadata)

    def fold(self, append: Sequence[StoredEvent]) -> list[Any] | None:
        """Apply the events of an append; return them as the code sees them, None if that is not possible."""
        made: list[Any] = []
        for event in append:
            self.events += 1
            if self._is_broken:
                continue
            try:
                now = self._fold.add(event)
            except Refused as error:
                self._is_broken = True
                self._differs("event", event.seq_nr, event.payload, None, str(error))
                continue
            made += now
            if self._engine.events.is_upcast(event.payload):
                self._differs("upcast", event.seq_nr, event.payload, [_shown_event(self._engine, each) for each in now])
        return None if self._is_broken else made

    async def decide(self, append: Sequence[StoredEvent], kept: KeptCommand) -> None:
        """Handle the command of an append again on the state before it, and apply its stored events."""
        before = self._record()
        events = self.fold(append)
        if events is None or isinstance(before, HeadraceError):
            return
        self.commands += 1
        decision = await self._handling.decide(before, kept.request(self.aggregate), now_ms=kept.now_ms)
        stored, now = [_shown_event(self._engine, each) for each in events], _made(self._engine, decision)
        if stored != now:
            self._differs("decision", append[0].seq_nr, stored, now, f"command {kept.type}")

    def compare(self, value: bytes | None) -> Suspect | None:
        """Return how the state differs from the stored one, which may be newer than the events; None if it does not."""
        if self._is_broken:
            return None
        found = difference_of(self._values, StoredAggregate(self.aggregate, value), self._fold)
        return None if found is None else Suspect(value, found)

    def _record(self) -> AggregateRecord | HeadraceError | None:
        """Return the aggregate as a handler would find it before the next append."""
        if self._fold.version == 0:
            return None
        try:
            return AggregateRecord(1, self._fold.version, self._fold.encoded(self._values.inner))
        except Refused as error:
            return error

    def _differs(self, kind: ReplayKind, seq_nr: int, stored: object, now: object, about: str = "") -> None:
        self.differences.append(
            ReplayDifference(kind=kind, id=self.aggregate, seq_nr=seq_nr, stored=stored, now=now, about=about)
        )


def state_difference(found: AggregateDifference) -> ReplayDifference:
    """Return a difference of states as a replay reports it."""
    return ReplayDifference(
        kind="state",
        id=found.id,
        stored={"version": found.stored_version, "state": found.stored_state},
        now={"version": found.folded_version, "state": found.folded_state},
        about=found.problem,
    )


def appends_in(events: Iterable[StoredEvent]) -> Iterable[list[StoredEvent]]:
    """Yield the events of one append after those of the other."""
    some: list[StoredEvent] = []
    for event in events:
        if some and (event.partition, event.offset) != (some[0].partition, some[0].offset):
            yield some
            some = []
        some.append(event)
    if some:
        yield some


async def replay_some(
    log: Log,
    journal: JournalEvents,
    engine: Engine[Any],
    ids: Iterable[str],
    *,
    registry: Registry | None = None,
    limit: int = 10,
) -> EngineReplay:
    """Try the engine's code on some aggregates, in this process. Nothing is written."""
    values = AggregateValues(engine.state_codec(registry))
    await values.open()
    auditor, tally = EngineAuditor(log, journal, engine, values), ReplayTally(counts={}, first={})
    wanted = list(dict.fromkeys(ids))
    records = await auditor.stored(wanted)
    async for id_, events in journal.read_many(wanted):
        replay = AggregateReplay(engine, values, id_)
        for append in appends_in([event async for event in events]):
            kept = replay.command_of(append)
            await replay.decide(append, kept) if kept is not None else replay.fold(append)
        if (suspect := replay.compare(records.get(id_))) is not None:
            replay.differences += map(state_difference, await auditor.confirmed({id_: suspect}))
        add_replay(tally, replay, limit)
    return EngineReplay.of(engine.name, [tally], limit=limit)


def add_replay(tally: ReplayTally, replay: AggregateReplay[Any], limit: int) -> None:
    """Count what the replay of one aggregate found."""
    tally.aggregates += 1
    tally.events += replay.events
    tally.commands += replay.commands
    for difference in replay.differences:
        tally.add(difference, limit)


def _made(engine: Engine[Any], decision: Decision) -> Any:  # noqa: ANN401
    """Return what a decision comes to, as it is compared and shown."""
    if decision.error is not None:
        return {"failed": str(decision.error)}
    if decision.reject is not None:
        return {"rejected": decision.reject.code}
    return [_shown_event(engine, each) for each in decision.events]


def _shown_event(engine: Engine[Any], event: Any) -> Any:  # noqa: ANN401
    """Return an event as it is compared and shown; of one that could not be written, the reason."""
    try:
        return engine.events.payload(event, is_sorted=True)
    except NotStorable as error:
        return {"failed": str(error)}


def _order(difference: ReplayDifference) -> tuple[str, int]:
    return difference.id, difference.seq_nr or 0


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
