"""Consistency tokens: the places in the log that a write came to, as a short text that any later read accepts.

A write returns a token, and a read that is given the token shows the write. Users pass the text on, unchanged, between
processes, services and browsers. It is opaque to them, and safe in URLs and headers.

The text is `hr1.` and base64url, without padding, of a CRC-32 (big-endian) and MessagePack: a list of
[topic, topic id, [partition, offset, partition, offset, …]], sorted, each partition once. A token without places is the
empty text. Each token has exactly one text, so that equal tokens are equal texts.
"""

from __future__ import annotations

import binascii
import functools
import re
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from itertools import chain, groupby
from typing import NamedTuple

import msgspec

from headrace.errors import BadToken, TokenAhead, TokenOfOtherTopic
from headrace.model.records import Position
from headrace.model.topics import Topic

__all__ = ["ConsistencyToken", "TokenPlace", "WrittenPosition", "combine_tokens"]

_PREFIX = "hr1."
_ANY_VERSION = re.compile(r"hr[0-9]+\.")
_TEXT = re.compile(r"[A-Za-z0-9_-]+")
_CHECKSUM_BYTES = 4
_MAX_CHARS = 8_192
_MAX_PARTITION = 2**31 - 1
_MAX_OFFSET = 2**63 - 1

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[str, str, list[int]]]).decode


class TokenPlace(NamedTuple):
    """A place in the log. The topic's id tells it from other topics of the same name, here and in other clusters."""

    topic: str
    topic_id: str
    partition: int
    offset: int

    def check(self, found: Topic) -> None:
        """Check the place against the topic of this name. Raises TokenOfOtherTopic, BadToken."""
        if self.topic_id != found.topic_id:
            raise TokenOfOtherTopic(self.topic, self.topic_id, found.topic_id)
        if self.partition >= found.partitions:
            reason = f"topic {self.topic!r} has {found.partitions} partitions, and no partition {self.partition}"
            raise BadToken(reason)

    def check_end(self, end: int) -> None:
        """Check the place against the end (exclusive) of its partition. Raises TokenAhead."""
        if self.offset >= end:
            raise TokenAhead(self.topic, self.partition, self.offset, end)


class ConsistencyToken(msgspec.Struct, frozen=True):
    """What a reader must have seen: for each partition the highest offset. `ConsistencyToken.of` makes one."""

    places: tuple[TokenPlace, ...] = ()

    @classmethod
    def of(cls, places: Iterable[TokenPlace]) -> ConsistencyToken:
        """Return the token of these places; of several in one partition the highest counts."""
        highest: dict[tuple[str, str, int], int] = {}
        for place in places:
            highest[place[:3]] = max(place.offset, highest.get(place[:3], 0))
        return cls(tuple(TokenPlace(*key, offset) for key, offset in sorted(highest.items())))

    @classmethod
    def parse(cls, text: str) -> ConsistencyToken:
        """Return the token that the text stands for. Raises BadToken."""
        if not isinstance(text, str):
            raise BadToken(f"it is no text, but of type {type(text).__name__}")
        return _parsed(text)

    def merged(self, *others: ConsistencyToken) -> ConsistencyToken:
        """Return the token of a reader that has seen what all of these name."""
        return ConsistencyToken.of(chain(self.places, *(other.places for other in others)))

    def of_topic(self, topic: str) -> tuple[TokenPlace, ...]:
        """Return the places in topics of that name."""
        return tuple(place for place in self.places if place.topic == topic)

    def __str__(self) -> str:
        return _text_of(self.places)


@functools.lru_cache(maxsize=1024)  # all reads between two writes of a partition have the same one
def _text_of(places: tuple[TokenPlace, ...]) -> str:
    if not places:
        return ""
    topics = groupby(places, key=lambda place: (place.topic, place.topic_id))
    packed = _encode([(*topic, [part for place in group for part in place[2:]]) for topic, group in topics])
    checksum = zlib.crc32(packed).to_bytes(_CHECKSUM_BYTES)
    return _PREFIX + urlsafe_b64encode(checksum + packed).rstrip(b"=").decode()


@functools.lru_cache(maxsize=1024)  # a caller sends its last token with each of its reads
def _parsed(text: str) -> ConsistencyToken:
    if not text:
        return ConsistencyToken()
    if len(text) > _MAX_CHARS:
        raise BadToken(f"it has {len(text)} characters, and tokens have {_MAX_CHARS} at most")
    if not text.startswith(_PREFIX):
        is_newer = _ANY_VERSION.match(text) is not None
        raise BadToken("another version of Headrace made it" if is_newer else f"it does not begin with {_PREFIX!r}")
    token = ConsistencyToken.of(_places_of(text.removeprefix(_PREFIX)))
    if str(token) != text:
        raise BadToken("it was changed on its way")
    return token


def _places_of(body: str) -> Iterable[TokenPlace]:
    """Return the places in the text behind the version. Raises BadToken."""
    if _TEXT.fullmatch(body) is None:
        raise BadToken("it has characters that no token has")
    try:
        data = urlsafe_b64decode(body + "=" * (-len(body) % 4))
    except binascii.Error as error:
        raise BadToken("a part of it is missing") from error
    checksum, packed = data[:_CHECKSUM_BYTES], data[_CHECKSUM_BYTES:]
    if zlib.crc32(packed).to_bytes(_CHECKSUM_BYTES) != checksum:
        raise BadToken("its checksum is wrong: a part of it is missing, or was changed on its way")
    try:
        topics = _decode(packed)
    except msgspec.MsgspecError as error:
        raise BadToken("it holds no places") from error
    for topic, topic_id, numbers in topics:
        for partition, offset in zip(numbers[::2], numbers[1::2], strict=False):  # a token with half a pair is changed
            if not (0 <= partition <= _MAX_PARTITION and 0 <= offset <= _MAX_OFFSET):
                raise BadToken(f"no log has offset {offset} in a partition {partition}")
            yield TokenPlace(topic, topic_id, partition, offset)


def combine_tokens(*texts: str) -> str:
    """Return one token for all of these: a read that is given it shows what each of them stands for.

    Raises BadToken, also if the result is too long to travel in a header.
    """
    combined = str(ConsistencyToken().merged(*map(ConsistencyToken.parse, texts)))
    if len(combined) > _MAX_CHARS:
        raise BadToken(f"together they have {len(combined)} characters, and tokens have {_MAX_CHARS} at most")
    return combined


class WrittenPosition(Position):
    """The position of an append, a delete or a purge, with the token for reads that must show it."""

    _topic_id: str

    @classmethod
    def at(cls, position: Position, topic_id: str) -> WrittenPosition:
        """Return a position in the topic with this id."""
        written = tuple.__new__(cls, position)
        written._topic_id = topic_id  # noqa: SLF001 - it is of this class
        return written

    @property
    def token(self) -> str:
        """The consistency token of what was written."""
        place = TokenPlace(self.topic, self._topic_id, self.partition, self.offset)
        return str(ConsistencyToken((place,)))
