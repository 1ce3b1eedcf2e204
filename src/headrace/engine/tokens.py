"""The consistency token of what one partition of an engine has committed, in its journal and in its state topic."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from headrace.log import Log
from headrace.model import ConsistencyToken, Position, TokenPlace, TopicPartition
from headrace.state import StateReplica, place_of

__all__ = ["PartitionTokens"]


class PartitionTokens:
    """Follows the commits of one partition. Without a journal the token names the state topic alone.

    The replies of one batch share a token: it names the last records of the batch, and whoever has these has all.
    """

    def __init__(self, state: StateReplica, log: Log | None = None, journal: TopicPartition | None = None) -> None:
        self._state = state
        self._log = log
        self._journal_at = journal
        self._journal_id = ""
        self._journal_offset = -1
        self._state_offset = -1
        self._text: str | None = None
        self._asking = asyncio.Lock()
        self._questions = self._answered = 0

    def begin(self) -> None:
        """Begin a tenure: what the owners before have committed belongs to the token, too."""
        self._journal_offset = self._state_offset = -1
        self._want_journal_end()

    def committed(self, topics: Collection[str], positions: Iterable[Position]) -> None:
        """Take note of a commit to these topics.

        A commit that was settled by reading has no positions in the journal; then the journal's end is asked for.
        """
        last = {position.topic: position.offset for position in positions}
        self._text = None
        self._state_offset = max(self._state_offset, last.get(self._state.at.topic, -1))
        if self._journal_at is None or self._journal_at.topic not in topics:
            return
        if self._journal_at.topic in last:
            self._journal_offset = max(self._journal_offset, last[self._journal_at.topic])
        else:
            self._want_journal_end()

    async def text(self) -> str:
        """Return the token of everything that was committed so far. Raises what the log raises."""
        if self._answered < self._questions:
            async with self._asking:
                if self._answered < self._questions:
                    await self._ask_journal_end()
        return self._made()

    def known(self) -> str | None:
        """Return the token if the log need not be asked for it; None otherwise."""
        return None if self._answered < self._questions else self._made()

    def _made(self) -> str:
        if self._text is None:
            self._text = str(ConsistencyToken.of(self._places()))
        return self._text

    def is_beyond(self, token: ConsistencyToken) -> bool:
        """Return True if a token names a record of this partition that is not known to be committed here."""
        known = {self._state.at: self._state_known}
        if self._journal_at is not None:
            known[self._journal_at] = self._journal_offset
        return any(
            place.offset > known.get(TopicPartition(place.topic, place.partition), place.offset)
            for place in token.places
        )

    @property
    def _state_known(self) -> int:
        applied = place_of(self._state)
        return max(self._state_offset, -1 if applied is None else applied.offset)

    def _want_journal_end(self) -> None:
        self._questions += 1
        self._text = None

    async def _ask_journal_end(self) -> None:
        """Ask where the journal ends, which is behind everything that was committed before the question."""
        question = self._questions
        if self._log is not None and self._journal_at is not None:
            topic = await self._log.admin.describe(self._journal_at.topic)
            end = (await self._log.bounds(self._journal_at)).high_watermark
            self._journal_id = topic.topic_id
            self._journal_offset = max(self._journal_offset, end - 1)
        self._answered, self._text = question, None

    def _places(self) -> Iterable[TokenPlace]:
        if self._journal_at is not None and self._journal_id and self._journal_offset >= 0:
            yield TokenPlace(self._journal_at.topic, self._journal_id, self._journal_at.partition, self._journal_offset)
        if (offset := self._state_known) >= 0:
            yield TokenPlace(self._state.topic.name, self._state.topic.topic_id, self._state.at.partition, offset)
