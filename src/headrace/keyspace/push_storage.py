"""Where a push hook stands: the places of its partitions and its dead letters, in a compacted topic of its own."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.errors import NotReadable
from headrace.log import Log, ensure_topic
from headrace.model import Cleanup, NewRecord, Record, TopicConfig, TopicPartition

__all__ = ["PushLetter", "PushStorage"]

_PLACE, _LETTER = "place/", "letter/"


class PushLetter(msgspec.Struct, frozen=True):
    """A change that could not be pushed. `key` is the key as JSON; `id` is what the hook got as the change's id."""

    id: str
    partition: int
    key: msgspec.Raw
    error: str
    attempts: int
    time_ms: int


class PushStorage:
    """The topic. One process writes it at a time; if two do, changes are pushed again, and none is lost."""

    def __init__(self, log: Log, topic: str) -> None:
        self.topic = topic
        self._log = log
        self.places: dict[int, str] = {}
        self.letters: dict[str, PushLetter] = {}

    async def load(self) -> None:
        """Make the topic, and read where the hook stands; until that is known, what was known before is."""
        config = TopicConfig(cleanup=Cleanup.COMPACT)
        await ensure_topic(self._log.admin, self.topic, partitions=1, config=config)
        at = TopicPartition(self.topic, 0)
        bounds = await self._log.bounds(at)
        places: dict[int, str] = {}
        letters: dict[str, PushLetter] = {}
        async for batch in self._log.read(at, bounds.start, bounds.end):
            for record in batch.records:
                self._apply(record, places, letters)
        self.places, self.letters = places, letters

    async def save(self, partition: int, place: str) -> None:
        """Store the place of a partition: all before it is done."""
        await self._write(f"{_PLACE}{partition}", place)
        self.places[partition] = place

    async def bury(self, letter: PushLetter) -> None:
        """Store a dead letter."""
        await self._write(f"{_LETTER}{letter.id}", letter)
        self.letters[letter.id] = letter

    async def remove(self, letter: PushLetter) -> None:
        """Remove a dead letter."""
        await self._log.append([NewRecord(self.topic, f"{_LETTER}{letter.id}".encode(), None, partition=0)])
        self.letters.pop(letter.id, None)

    async def _write(self, key: str, content: Any) -> None:  # noqa: ANN401
        await self._log.append([NewRecord(self.topic, key.encode(), msgspec.json.encode(content), partition=0)])

    def _apply(self, record: Record, places: dict[int, str], letters: dict[str, PushLetter]) -> None:
        key = (record.key or b"").decode()
        try:
            if key.startswith(_PLACE) and record.value is not None:
                places[int(key.removeprefix(_PLACE))] = msgspec.json.decode(record.value, type=str)
            elif key.startswith(_LETTER):
                letters.pop(key.removeprefix(_LETTER), None)
                if record.value is not None:
                    letter = msgspec.json.decode(record.value, type=PushLetter)
                    letters[letter.id] = letter
        except (ValueError, msgspec.MsgspecError) as error:
            raise NotReadable(f"the push topic {self.topic!r}", key[:60], str(error)) from error
