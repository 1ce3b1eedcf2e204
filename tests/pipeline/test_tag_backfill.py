"""A tag that history gets afterwards, by the shipped job in a Spark session."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.pipeline.tier import Tier
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.errors import BadArgument, TagBuilding
from headrace.journal import Journal
from headrace.log import Log
from headrace.model import Event
from headrace.pipeline import TagBackfillSummary, backfill_tag
from headrace.store import Store
from headrace.tags import Chooser, TaggedEvent, TagQueries

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def tier(tier: Tier, tmp_path: Path) -> Tier:
    """Return a tier with no topics of other tests: queries and jobs of a tag read all topics."""
    return tier.apart(tmp_path / "own")


KEYS = 6


@pytest.fixture
def tag() -> str:
    """Return a tag that no other test uses."""
    return f"even-{uuid.uuid4().hex[:8]}"


def chooser(topic: str) -> Chooser:
    """Return a function that chooses the even events of a topic: it travels by value, as one of a notebook does."""

    def is_even(event: TaggedEvent) -> bool:
        return event.topic == topic and event.payload["n"] % 2 == 0

    return is_even


async def write(journal: Journal, tag: str | None, first: int, last: int) -> None:
    """Write events as writers do that don't know the tag, or do."""
    for n in range(first, last + 1):
        tags = (tag,) if tag is not None and n % 2 == 0 else ()
        await asyncio.gather(*(journal.append(f"k{key}", [Event(n, {"n": n}, tags)]) for key in range(KEYS)))


def fill(tier: Tier, tag: str, topic: str, **options: bool) -> TagBackfillSummary:
    return backfill_tag(tier.spark, tier.endpoints, tag, chooser(topic), name="tests:is_even", **options)


def events_of(tier: Tier, tag: str) -> list[TaggedEvent]:
    async def read(log: Log, store: Store) -> list[TaggedEvent]:
        queries = TagQueries(log, store, tier.endpoints.settings_of_tags())
        return [event async for event in queries.events(tag)]

    return tier.on(read)


def check(events: list[TaggedEvent], last: int) -> None:
    """Each even event of each key once, numbered from 1, in one order."""
    by_id: dict[str, list[tuple[int, int]]] = {}
    for event in events:
        by_id.setdefault(event.id, []).append((event.seq_nr, event.number))
    expected = [(seq_nr, number) for number, seq_nr in enumerate(range(2, last + 1, 2), 1)]
    assert by_id == {f"k{key}": expected for key in range(KEYS)}
    assert [event.tag_offset for event in events] == sorted(event.tag_offset for event in events)


@contextmanager
def meanwhile(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Do something in another thread for as long as the block runs."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work(stop)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(120)
    if failed:
        raise failed[0]


def test_history_gets_a_tag_while_writing_and_replication_go_on(tier: Tier, topic: str, tag: str) -> None:
    """T38: the query gives exactly the events that the function chooses, numbered from 1, and those written since."""
    tier.with_journal(topic, lambda journal: write(journal, None, 1, 10))
    written = [10]

    def go_on(stop: threading.Event) -> None:
        while not stop.wait(0.05):
            written[0] += 1
            tier.with_journal(topic, lambda journal: write(journal, tag, written[0], written[0]))

    with tier.replicating(topic), meanwhile(go_on):
        done = fill(tier, tag, topic)
        assert done.tagged >= 5 * KEYS
        assert events_of(tier, tag)
    check(events_of(tier, tag), written[0])
    tier.apply(topic)
    check(events_of(tier, tag), written[0])
    again = fill(tier, tag, topic)
    assert not again.is_new
    check(events_of(tier, tag), written[0])


def test_a_killed_task_leaves_nothing_wrong(tier: Tier, topic: str, tag: str) -> None:
    """T38: a worker dies between rows and numbers: the tag stays "building"; done again, all is right."""
    tier.with_journal(topic, lambda journal: write(journal, None, 1, 6))
    tier.arm("tags.fill-before-progress", nth=2)
    with pytest.raises(Exception, match=r"(?i)worker|crash|died|abort"):
        fill(tier, tag, topic)
    assert tier.disarm()
    with pytest.raises(TagBuilding, match="tests:is_even --again"):
        events_of(tier, tag)
    with pytest.raises(TagBuilding):
        fill(tier, tag, topic)
    tier.with_journal(topic, lambda journal: journal.delete("k0", to=3))
    done = fill(tier, tag, topic, again=True)
    assert (done.tagged, done.is_new) == (3 * KEYS - 1, True)
    events = events_of(tier, tag)
    by_id = {id_: [(e.seq_nr, e.number) for e in events if e.id == id_] for id_ in ("k0", "k1")}
    assert by_id == {"k0": [(4, 1), (6, 2)], "k1": [(2, 1), (4, 2), (6, 3)]}


def test_the_command_fills_a_tag(
    tier: Tier, topic: str, tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T38: a function of a module in the current folder, which no worker could import, chooses."""
    tier.with_journal(topic, lambda journal: write(journal, None, 1, 4))
    (tmp_path / "tag_shop.py").write_text(
        f"TOPIC = {topic!r}\n\ndef is_even(event):\n    return event.topic == TOPIC and event.seq_nr % 2 == 0\n"
    )
    monkeypatch.chdir(tmp_path)
    arguments = [
        "tags",
        "backfill",
        tag,
        "tag_shop:is_even",
        "--log",
        tier.endpoints.log,
        "--store",
        tier.endpoints.store,
    ]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["tagged"] == 2 * KEYS
    assert "already" in CliRunner().invoke(app, arguments).stdout
    check(events_of(tier, tag), 4)
    refused = CliRunner().invoke(app, ["tags", "backfill", tag, "tag_shop:TOPIC"])
    assert isinstance(refused.exception, BadArgument)
