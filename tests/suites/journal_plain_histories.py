"""Random histories that are mostly plain appends, with every unusual kind of record mixed in."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.suites.journal_script import Script

from headrace.model import Event, Record
from headrace.protocol.headers import append_headers

__all__ = ["PLAIN_IDS", "plain_history"]

PLAIN_IDS = ("a", "b", "ä-ü", "d", "e%d")
JUMP = 10**9


def plain_history(rng: random.Random, *, actions: int, topic: str = "t", unusual: float = 0.1) -> Script:
    """Write a history in which a share `unusual` of the records is no plain append of the journal's next events."""
    script, pointers, writers = Script(topic), dict.fromkeys(PLAIN_IDS, 0), dict.fromkeys(PLAIN_IDS, "one")
    while len(script.records) < actions:
        id_ = rng.choice(PLAIN_IDS)
        first = pointers[id_] + (1 if rng.random() < 0.9 else rng.randint(1, 4))
        if rng.random() < unusual:
            _unusual(rng, script, id_, first, writers)
        else:
            given = [_event(rng, number) for number in range(first, first + rng.choice((1, 1, 1, 1, 3)))]
            script.append(id_, first, given=given, origin=writers[id_], version="1")
            pointers[id_] = given[-1].seq_nr
        if rng.random() < 0.1:
            script.skip(rng.randint(1, 3))
        if rng.random() < 0.3:
            script.timestamp_ms -= rng.randint(1, 5)  # log time stands still
    return script


def _event(rng: random.Random, number: int) -> Event:
    return Event(
        number, rng.choice((b"", b"{}", b"\x00%d" % number, b"\xff" * 30, None, f"text {number}", {"n": number}))
    )


def _unusual(rng: random.Random, script: Script, id_: str, first: int, writers: dict[str, str]) -> None:
    """Write a record of an unusual kind, or let another writer take over the journal."""
    again, far = max(1, first - rng.randint(1, 3)), first + JUMP
    append, binary = script.append, [Event(first, b"binary")]
    tagged = [Event(first, b"x", tags=("t1", "t2")), Event(first + 1, b"y")]
    kinds: list[Callable[[], object]] = [
        lambda: script.delete(id_, max(1, first - rng.randint(0, 3))),
        lambda: script.purge(id_),
        lambda: script.mark(id_),
        lambda: script.mark(id_, segment_size=rng.choice((1, 2, 3, 10_000))),
        lambda: append(id_, first, given=tagged),
        lambda: append(id_, first, given=binary, headers={"user": "header"}),
        lambda: append(id_, first, given=binary, metadata={"of": "the record"}),
        lambda: append(id_, first, given=binary, payload_metadata={"of": "the payload"}),
        lambda: append(id_, first, given=binary, expire_after="1 day"),
        lambda: append(id_, first, given=binary, expected=first - rng.randint(1, 2)),
        lambda: append(id_, again, given=[Event(again, b"void")]),
        lambda: append(id_, far, given=[Event(far, b"far away")]),
        lambda: writers.update({id_: rng.choice(("one", "two", "100 %"))}),
        lambda: script.poison(id_),
        lambda: append("", first, given=binary),
        lambda: _damaged(rng, script, id_, first),
        lambda: _renumbered(script, id_, first),
        lambda: _in_another_format(script, id_, first),
        lambda: _raw(script, rng.choice((None, b"\xff\xfe")), first),
    ]
    rng.choice(kinds)()


def _damaged(rng: random.Random, script: Script, id_: str, first: int) -> None:
    """Write a plain append with a byte changed, cut off or added, in its value or in its header."""
    good = script.append(id_, first, given=[Event(first, b"payload")])
    (name, header), value = good.headers[0], good.value
    parts = [header or b"", value or b""]
    which = rng.randint(0, 1)
    at, part = rng.randrange(len(parts[which])), parts[which]
    parts[which] = rng.choice(
        (
            part[:at] + bytes((rng.randrange(256),)) + part[at + 1 :],
            part[:at],
            part + b"}",
            part[:at] + b" " + part[at:],
        )
    )
    script.records[-1] = _with(good, parts[1], ((name, parts[0]),))


def _renumbered(script: Script, id_: str, first: int) -> None:
    """Write a header that says other numbers than its value."""
    good = script.append(id_, first, given=[Event(first, b"payload")])
    script.records[-1] = _with(good, good.value, append_headers(first + 1, first + 1, "binary", None, None))


def _in_another_format(script: Script, id_: str, first: int) -> None:
    """Write a binary event behind a header that says JSON, as the records of text have."""
    good = script.append(id_, first, given=[Event(first, b"payload")])
    script.records[-1] = _with(good, good.value, append_headers(first, first, "json", "one", "1"))


def _raw(script: Script, key: bytes | None, first: int) -> None:
    """Write an append whose key can't be an id."""
    good = script.append("k", first, given=[Event(first, b"payload")])
    script.records[-1] = Record(
        good.topic, good.partition, good.offset, good.timestamp_ms, key, good.value, good.headers
    )


def _with(record: Record, value: bytes | None, headers: tuple[tuple[str, bytes | None], ...]) -> Record:
    return Record(record.topic, record.partition, record.offset, record.timestamp_ms, record.key, value, headers)
