"""What was known before an append was first tried: with it a retry, from any process, makes no duplicate."""

from __future__ import annotations

import uuid

import msgspec

from headrace.errors import BadArgument
from headrace.journal.journal_state import Known
from headrace.model import TopicPartition
from headrace.store import JournalMeta, Place, ReplicatedOffset

__all__ = ["AppendAttempt"]


class AppendAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An append that may be tried several times.

    `since` is the end of the log before the first try; `replicated` and `stored` are what the store had of the journal
    then: from there the log is folded to find out what became of each try.
    """

    topic: str
    id: str
    append_id: str
    since: Place
    replicated: tuple[tuple[TopicPartition, ReplicatedOffset | None], ...]
    stored: JournalMeta | None

    @classmethod
    def of(cls, topic: str, id_: str, since: Place, known: Known, *, append_id: str | None = None) -> AppendAttempt:
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
        """Return what `dump` wrote. Raises BadArgument for what is none, or is another journal's."""
        try:
            attempt = msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, UnicodeEncodeError, TypeError) as error:
            raise BadArgument("attempt", text, "it must be what prepare() returned") from error
        if (attempt.topic, attempt.id) != (topic, id_):
            rule = f"it was prepared for {attempt.id!r} in topic {attempt.topic!r}, not for {id_!r} in {topic!r}"
            raise BadArgument("attempt", attempt.append_id, rule)
        return attempt

    def dump(self) -> str:
        """Return it as text, to be kept where a crash can't reach it."""
        return msgspec.json.encode(self).decode()

    @property
    def known(self) -> Known:
        """What the store had before the first try."""
        return Known(dict(self.replicated), self.stored)
