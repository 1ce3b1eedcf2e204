"""Random histories of a partition: every kind of action on a few keys, aimed at the places where they meet."""

from __future__ import annotations

import random

from tests.suites.journal_oracle import Oracle, PlainJournal
from tests.suites.journal_script import Script

from headrace.model import Event
from headrace.store import Place

__all__ = ["random_history"]

IDS = ("a", "b", "c")
JUMP = 10**9


def random_history(
    rng: random.Random,
    *,
    actions: int,
    topic: str = "t",
    partition: int = 0,
    ids: tuple[str, ...] = IDS,
    plain: float = 0.0,
) -> Script:
    """Write a history. Numbers lie near the journal's own, so that some appends are void and some deletes clamped.

    A share `plain` of the actions are appends of the journal's next event and nothing else.
    """
    script, oracle = Script(topic, partition), Oracle()
    while len(script.records) < actions:
        id_ = rng.choice(ids)
        if plain and rng.random() < plain:
            _append_next(script, oracle, id_)
        else:
            _act(rng, script, oracle, id_)
        oracle.apply(script.records[-1])
        if rng.random() < 0.1:
            script.skip(rng.randint(1, 3))
        if rng.random() < 0.3:
            script.timestamp_ms -= 1  # several records of one millisecond
    return script


def _append_next(script: Script, oracle: Oracle, id_: str) -> None:
    journal = oracle.journals.get(id_)
    number = journal.seq_nr + 1 if journal is not None else 1
    script.append(id_, number, given=[Event(number, b"\x00%d" % number)])


def _act(rng: random.Random, script: Script, oracle: Oracle, id_: str) -> None:
    journal = oracle.journals.get(id_)
    pointer = journal.seq_nr if journal is not None else 0
    kind = rng.choices(("append", "mark", "delete", "purge", "conditional", "resize"), (50, 8, 20, 12, 7, 3))[0]
    if kind == "append":
        _append(rng, script, id_, pointer)
    elif kind == "mark":
        script.mark(id_)
    elif kind == "resize":
        script.mark(id_, segment_size=rng.choice((1, 2, 3, 5)))
    elif kind == "delete":
        script.delete(id_, max(1, pointer + rng.randint(-4, 2)), born=_looked_at(rng, script, journal))
    elif kind == "purge":
        script.purge(id_)
    else:
        last = journal.last_append if journal is not None else -1
        script.purge(id_, last_append=max(0, last + rng.randint(-2, 1)))


def _looked_at(rng: random.Random, script: Script, journal: PlainJournal | None) -> int | None:
    """Return where the journal began that a delete is meant for: as it is, as it was before a purge, or any."""
    kind = rng.random()
    if kind < 0.3:
        return None
    if kind < 0.7 and journal is not None:
        return journal.born
    return rng.randint(0, max(0, script.offset - 1))


def _append(rng: random.Random, script: Script, id_: str, pointer: int) -> None:
    first = max(1, pointer + (1 if rng.random() < 0.75 else rng.randint(-2, 3)))
    if rng.random() < 0.02 and first < JUMP:
        first += JUMP  # over more segments than anybody could ask for one by one
    given = [
        Event(n, rng.choice((None, b"\x00%d" % n, f"text {n}", {"n": n})))
        for n in range(first, first + rng.randint(1, 4))
    ]
    script.append(
        id_,
        first,
        given=given,
        expected=max(0, pointer + rng.randint(-1, 1)) if rng.random() < 0.2 else None,
        since=Place(0, max(0, script.offset - rng.randint(0, 6))) if rng.random() < 0.15 else None,
        expire_after="1 day" if rng.random() < 0.2 else None,
    )
