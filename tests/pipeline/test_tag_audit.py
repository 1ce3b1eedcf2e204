"""The audit of views by tag, by the shipped job in a Spark session."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from tests.pipeline.tag_by_hand import tag_operator_of
from tests.pipeline.tier import Tier
from typer.testing import CliRunner

from headrace.cli.pipelines import app
from headrace.journal import Journal
from headrace.log import Log
from headrace.model import Event
from headrace.pipeline import AuditReport, FindingKind, Selection, audit
from headrace.store import Store, TagNumber, TagRow
from headrace.tags import TagQueries

pytestmark = pytest.mark.timeout(300)

Named = set[tuple[str, FindingKind, int | None, str | None]]


@pytest.fixture
def tier(tier: Tier, tmp_path: Path) -> Tier:
    """Return a tier with no topics of other tests: queries of a tag read all topics."""
    return tier.apart(tmp_path / "own")


async def write(journal: Journal, tag: str, first: int, last: int) -> None:
    """Write events under a tag, and some under none."""
    for n in range(first, last + 1):
        tags = () if n == 2 else (tag,)
        await asyncio.gather(*(journal.append(f"k{key}", [Event(n, {"n": n}, tags)]) for key in range(5)))


async def rows_of(store: Store, tag: str) -> list[TagRow]:
    views = store.tags.views
    pages = [page for bucket in await views.buckets(tag) async for page in views.read(tag, bucket)]
    return [row for page in pages for row in page]


def audited(tier: Tier, topic: str, *, repair: bool = False) -> AuditReport:
    report = audit(tier.spark, tier.endpoints, Selection((topic,)), repair=repair)
    report.close()
    return report


def named(report: AuditReport) -> Named:
    return {(found.id, found.kind, found.seq_nr, found.tag) for found in report.findings}


def numbers_of(tier: Tier, tag: str) -> dict[str, list[int]]:
    async def read(log: Log, store: Store) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        async for event in TagQueries(log, store, tier.endpoints.settings_of_tags()).events(tag):
            found.setdefault(event.id, []).append(event.number)
        return found

    return tier.on(read)


def edit(tier: Tier, tag: str, rows: Sequence[TagRow], numbers: TagNumber) -> Named:
    """Remove, change and add rows, and change a number; returns what an audit should find."""
    by_name = {(row.pid, row.seq_nr): row for row in rows}
    operator = tag_operator_of(tier)
    operator.remove(by_name["k0", 3])
    operator.change(by_name["k1", 4])
    operator.add(msgspec.structs.replace(by_name["k2", 1], number=7, seq_nr=9))
    operator.add(msgspec.structs.replace(by_name["k3", 1], pid="nobody"))
    operator.set_number(msgspec.structs.replace(numbers, number=2))
    return {
        ("k0", FindingKind.TAG_ROW_MISSING, 3, tag),
        ("k1", FindingKind.TAG_ROW_CHANGED, 4, tag),
        ("k2", FindingKind.TAG_ROW_ADDED, 9, tag),
        ("nobody", FindingKind.TAG_ROW_ADDED, 1, tag),
        ("k4", FindingKind.TAG_NUMBER_CHANGED, 5, tag),
    }


def test_what_was_done_to_views_by_hand_is_named_and_repaired(tier: Tier, topic: str) -> None:
    """K15: rows of a view removed, changed, added, a number changed: named by tag, key and seq_nr, exit 1; repaired."""
    tag = f"vip-{uuid.uuid4().hex[:8]}"
    tier.with_journal(topic, lambda journal: write(journal, tag, 1, 5))
    tier.with_journal(topic, lambda journal: journal.delete("k1", to=2))
    tier.with_journal(topic, lambda journal: journal.purge("k3"))
    tier.apply(topic)
    assert audited(tier, topic).found == 0
    rows = tier.on(lambda _, store: rows_of(store, tag))
    numbers = tier.on(lambda _, store: store.tags.numbers.of(topic, "k4"))
    expected = edit(tier, tag, rows, numbers[tag])
    endpoints = ["--log", tier.endpoints.log, "--store", tier.endpoints.store]
    done = CliRunner().invoke(app, ["audit", "--topics", topic, "--json", *endpoints])
    assert done.exit_code == 1, done.output
    assert {(f["id"], f["kind"], f["seq_nr"], f["tag"]) for f in json.loads(done.stdout)["findings"]} == expected
    repaired = audited(tier, topic, repair=True)
    assert named(repaired) == expected
    assert repaired.is_clean, [str(each) for each in repaired.findings if not each.repaired]
    assert audited(tier, topic).found == 0
    assert tier.on(lambda _, store: rows_of(store, tag)) == rows
    tier.with_journal(topic, lambda journal: write(journal, tag, 6, 6))
    tier.apply(topic)
    assert numbers_of(tier, tag) == {f"k{key}": [1, 2, 3, 4, 5] for key in range(5)}
