"""Append attempts: what was known before an append was first tried, so that a retry makes no duplicate."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.errors import AppendIdReused, BadArgument
from headrace.journal.window import KnownJournalState
from headrace.model import Position, TopicPartition
from headrace.protocol import check_text
from headrace.store import JournalMeta, Place, ReplicatedOffset

__all__ = ["AppendAttempt", "RememberedAppends", "Tries"]

_OPEN_AT_MOST = 100_000
_LANDED_AT_MOST = 10_000


class AppendAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An append that may be tried several times.

    `since` is the end of the log before the first try; `replicated` and `stored` are what the store had of the journal
    at that time. The log is folded from there to find the outcome of each try.
    """

    topic: str
    id: str
    append_id: str
    since: Place
    replicated: tuple[tuple[TopicPartition, ReplicatedOffset | None], ...]
    stored: JournalMeta | None

    @classmethod
    def of(
        cls, topic: str, id_: str, since: Place, known: KnownJournalState, *, append_id: str | None = None
    ) -> AppendAttempt:
        """Return an attempt that begins now."""
        return cls(
            topic=topic,
            id=id_,
            append_id=append_id or uuid.uuid4().hex,
            since=since,
            replicated=tuple(known.replicated.items()),
            stored=known.stored,
        )

    @classmethod
    def load(cls, text: str, topic: str, id_: str) -> AppendAttempt:
        """Return the attempt that `dump` wrote. Raises BadArgument if it is malformed or another journal's."""
        try:
            attempt = msgspec.json.decode(text, type=cls) if isinstance(text, str) else None
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            raise BadArgument("attempt", text[:60], "it must be what prepare() returned") from error
        if attempt is None:
            raise BadArgument("attempt", type(text).__name__, "it must be the text that prepare() returned")
        if (attempt.topic, attempt.id) != (topic, id_):
            rule = f"it was prepared for {attempt.id!r} in topic {attempt.topic!r}, not for {id_!r} in {topic!r}"
            raise BadArgument("attempt", attempt.append_id, rule)
        check_text("append id of the attempt", attempt.append_id, least=1)
        return attempt

    def dump(self) -> str:
        """Return the attempt as text, to be stored where it survives a crash."""
        return msgspec.json.encode(self).decode()

    @property
    def known(self) -> KnownJournalState:
        """What the store had before the first try."""
        return KnownJournalState(dict(self.replicated), self.stored)


@dataclass(slots=True)
class Tries:
    """The tries of one append of one journal, as long as their outcome is unknown.

    `calls` is the number of calls that run now. `is_open`: a try may have been written, and its outcome is unknown.
    """

    id: str
    append_id: str
    digest: str
    attempt: AppendAttempt | None = None
    calls: int = 0
    is_open: bool = False


class RememberedAppends:
    """The append ids that one journal instance has seen, each with the digest of its events.

    An append id belongs to one journal: the same append id in another journal is another append.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[str, str], Tries] = OrderedDict()
        self._landed: OrderedDict[tuple[str, str], tuple[str, Position]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of appends whose outcome is unknown."""
        return len(self._open)

    def landed(self, id_: str, append_id: str, digest: str) -> Position | None:
        """Return where the append landed, if that is known. Raises AppendIdReused for other events."""
        known = self._landed.get((id_, append_id))
        if known is None:
            return None
        if known[0] != digest:
            raise AppendIdReused(id_, append_id)
        return known[1]

    def begin(self, id_: str, append_id: str, digest: str) -> Tries:
        """Begin a try. Raises AppendIdReused if other events were tried with the id."""
        tries = self._open.get((id_, append_id))
        if tries is None:
            tries = self._open[id_, append_id] = Tries(id_, append_id, digest)
            _bound(self._open, _OPEN_AT_MOST)
        elif tries.digest != digest:
            raise AppendIdReused(id_, append_id)
        tries.calls += 1
        return tries

    def end(self, tries: Tries, *, is_open: bool, landed: Position | None = None) -> None:
        """End a try. An append that landed is remembered; one that is neither open nor being tried is forgotten."""
        tries.calls -= 1
        key = (tries.id, tries.append_id)
        if landed is not None:
            self._landed[key] = (tries.digest, landed)
            _bound(self._landed, _LANDED_AT_MOST)
        tries.is_open = is_open and key not in self._landed
        if not tries.is_open and tries.calls == 0 and self._open.get(key) is tries:
            del self._open[key]


def _bound(remembered: OrderedDict[tuple[str, str], Any], most: int) -> None:
    while len(remembered) > most:
        remembered.popitem(last=False)
