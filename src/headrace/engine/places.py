"""How far a partition has read its input topics: values in its own state topic, written with what the records led to.

Records of one input are handled side by side, so a later one may be done before an earlier one. A place says from where
to read on, and which records behind that are done already. All decisions, no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from headrace.errors import NotReadable
from headrace.state import RESERVED_PREFIX

__all__ = ["InputPlace", "InputPlaces", "InputSpan", "decode_place", "encode_place", "input_key", "saga_key"]

FORMAT = 1


def input_key(topic: str, partition: int) -> bytes:
    """Return the key of the place in one partition of a topic with commands. Reserved: states never show it."""
    return RESERVED_PREFIX + f".input/{topic}/{partition}".encode()


def saga_key(name: str) -> bytes:
    """Return the key of a saga's place in the journal."""
    return RESERVED_PREFIX + f".saga/{name}".encode()


class InputSpan(NamedTuple):
    """The offsets that one record stands for: from the end of the record before it to its own end.

    Offsets between two records, as those of transaction markers, belong to the later one.
    """

    key: bytes
    topic_id: str
    first: int
    end: int


class InputPlace(msgspec.Struct, frozen=True, array_like=True):
    """Everything below `next_offset` is done, and the spans in `done`.

    `attempts` counts the owners that began at this very place and did not get past it: a record may end its process.
    """

    format: int
    topic_id: str
    next_offset: int
    done: tuple[tuple[int, int], ...] = ()
    attempts: int = 0

    @classmethod
    def begin(cls, topic_id: str, offset: int) -> InputPlace:
        """Return the place of an input that was never read."""
        return cls(FORMAT, topic_id, offset)

    @property
    def end(self) -> int:
        """The offset behind everything that is done."""
        return max([self.next_offset, *(end for _, end in self.done)])

    def is_done(self, span: InputSpan) -> bool:
        """Return True if the span is done. One of another topic of this name is not known here."""
        if span.topic_id != self.topic_id:
            return False
        return span.end <= self.next_offset or any(end == span.end for _, end in self.done)

    def is_apart(self, span: InputSpan) -> bool:
        """Return True if the span is done and begins elsewhere than noted: records before it were compacted since."""
        return any(end == span.end and first != span.first for first, end in self.done)

    def after(self, span: InputSpan) -> InputPlace:
        """Return the place after one more span is done, or after one that is done turned out to begin elsewhere."""
        others = [(first, end) for first, end in self.done if end != span.end]
        return self._with(self.next_offset, (*others, (span.first, span.end)))

    def moved_to(self, offset: int) -> InputPlace:
        """Return the place when the log begins at an offset behind it; what is done beyond that stays done."""
        return self._with(max(offset, self.next_offset), self.done)

    def _with(self, next_offset: int, spans: Iterable[tuple[int, int]]) -> InputPlace:
        done = dict(spans)
        while next_offset in done:
            next_offset = done.pop(next_offset)
        left = sorted((first, end) for first, end in done.items() if end > next_offset)
        attempts = 0 if next_offset > self.next_offset else self.attempts
        return InputPlace(FORMAT, self.topic_id, next_offset, tuple(left), attempts)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(InputPlace).decode


def encode_place(place: InputPlace) -> bytes:
    """Return the bytes of a place."""
    return _encode(place)


def decode_place(data: bytes | None) -> InputPlace | None:
    """Return the place; None if there is none. Raises NotReadable."""
    if data is None:
        return None
    try:
        place = _decode(data)
    except msgspec.MsgspecError as error:
        raise NotReadable("a place in an input topic", repr(data[:40]), str(error)) from error
    if place.format != FORMAT:
        reason = f"its format is {place.format}, this version reads {FORMAT}"
        raise NotReadable("a place in an input topic", repr(data[:40]), reason)
    return place


class InputPlaces:
    """The places of a partition with all that was handled so far, committed or not; `stored` returns committed ones."""

    def __init__(self, stored: Callable[[bytes], bytes | None]) -> None:
        self._stored = stored
        self._newest: dict[bytes, InputPlace] = {}

    def get(self, key: bytes) -> InputPlace | None:
        """Return the newest place of an input; None if it was never read. Raises NotReadable."""
        found = self._newest.get(key)
        return found if found is not None else self.committed(key)

    def committed(self, key: bytes) -> InputPlace | None:
        """Return the place of an input that is in the log; None if there is none. Raises NotReadable."""
        return decode_place(self._stored(key))

    def put(self, key: bytes, place: InputPlace) -> bytes:
        """Take a new place, which the open batch writes; returns its bytes."""
        self._newest[key] = place
        return encode_place(place)

    def is_done(self, span: InputSpan) -> bool:
        """Return True if what a record leads to is in the log, or in a batch on its way there."""
        place = self.get(span.key)
        return place is not None and place.is_done(span)

    def finish(self, span: InputSpan) -> bytes:
        """Note that a span is done; returns the bytes of the new place. One of a topic that is gone moves nothing."""
        place = self.get(span.key)
        if place is None:
            place = InputPlace.begin(span.topic_id, span.first)
        return self.put(span.key, place.after(span) if place.topic_id == span.topic_id else place)

    def clear(self) -> None:
        """Forget what uncommitted batches did."""
        self._newest.clear()
