"""`headrace sql` as a person uses it, on both tiers."""

from __future__ import annotations

import csv
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.pipeline.tier import Tier, append_all
from tests.suites.journal_setting import replicate
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.errors import BadArgument, HeadraceError, OperationFailed
from headrace.model import Event, NewRecord, TopicConfig
from headrace.pipeline import Selection, query
from headrace.pipeline.tables import sql_views
from headrace.pipeline.tables.sql_views import view_name, words_of
from headrace.serde import BlockingRegistry, Payloads, Serde, avro

pytestmark = pytest.mark.timeout(300)


def asked(tier: Tier, *arguments: str, is_good: bool = True) -> str:
    """Run the command in this process, so that it uses the session that is there."""
    endpoints = ["--log", tier.endpoints.log, *([] if tier.is_embedded else ["--store", tier.endpoints.store])]
    done = CliRunner().invoke(app, ["sql", *arguments, *endpoints], env={"COLUMNS": "200"})
    if is_good and done.exception is not None:
        raise done.exception
    return done.output if is_good else str(done.exception)


@pytest.fixture
def journals(tier: Tier, topic: str) -> str:
    tier.with_journal(topic, lambda journal: append_all(journal, 3, 2), partitions=2)
    tier.on(lambda log, store: replicate(log, store, topic))
    tier.with_journal(topic, lambda journal: append_all(journal, 3, 1, first=3))
    return topic


def test_a_query_prints_a_table(tier: Tier, journals: str) -> None:
    """K5: journals, heads and offsets answer to SQL; printed as a table or as lines of JSON."""
    statement = "select key, count(*) as events, max(seq_nr) as last from journal group by key order by key"
    printed = asked(tier, statement, "--topics", journals)
    lines = [line.split() for line in printed.splitlines()]
    assert lines == [["key", "events", "last"], *([f"k{n}", "3", "3"] for n in range(3))]
    rows = [json.loads(line) for line in asked(tier, statement, "--prefix", journals, "--json").splitlines()]
    assert rows == [{"key": f"k{n}", "events": 3, "last": 3} for n in range(3)]
    joined = "select m.key, m.seq_nr, p.lag > 0 from meta m join pointers p on m.partition = p.partition order by m.key"
    lines = asked(tier, joined, "--topics", journals, "--json").splitlines()
    assert [list(json.loads(line).values()) for line in lines] == [[f"k{n}", 2, True] for n in range(3)]
    few = asked(tier, "select seq_nr from journal", "--topics", journals, "--limit", "2")
    assert "there are more than 2" in few
    assert asked(tier, "select * from journal where key = 'x'", "--topics", journals).strip() == "no rows"


def test_rows_go_to_a_file(tier: Tier, journals: str, tmp_path: Path) -> None:
    """K5: --out writes one Parquet file with the types, or one CSV file."""
    statement = "select key, seq_nr, payload, tags, timestamp from journal"
    parquet, text = tmp_path / "rows.parquet", tmp_path / "new" / "rows.csv"
    assert "wrote" in asked(tier, statement, "--topics", journals, "--out", str(parquet))
    table = pq.read_table(parquet)
    assert sorted((row["key"], row["seq_nr"]) for row in table.to_pylist()) == [
        (f"k{n}", seq_nr) for n in range(3) for seq_nr in (1, 2, 3)
    ]
    asked(tier, statement, "--topics", journals, "--out", str(text))
    rows = list(csv.DictReader(text.read_text().splitlines()))
    assert (len(rows), set(rows[0])) == (9, {"key", "seq_nr", "payload", "tags", "timestamp"})
    assert {path.name for path in tmp_path.iterdir()} == {"rows.parquet", "new"}
    assert "must end with .parquet or .csv" in asked(tier, "select 1", "--out", "rows.xls", is_good=False)


def test_topics_are_tables_by_name(tier: Tier, topic: str) -> None:
    """K3: topic_NAME has a topic's records, compact_NAME the newest of each key; only what is named is made.

    Of headers with the same name the last one counts.
    """

    async def fill(log: Any, _: Any) -> None:
        await log.admin.create(topic, partitions=2, config=TopicConfig())
        pairs = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", None)]
        await log.append([NewRecord(topic, key, value, (("h", b"u"), ("h", b"v"))) for key, value in pairs])

    tier.on(fill)
    everything, newest = view_name("topic", topic), view_name("compact", topic)
    rows = asked(tier, f"select count(*) as n, min(headers['h']) as h from {everything}", "--json")
    assert json.loads(rows) == {"n": 4, "h": "v"}
    rows = asked(tier, f"SELECT key, value FROM {newest.upper()}", "--json")
    assert json.loads(rows) == {"key": "a", "value": "3"}


def test_odd_values_are_printed_as_they_are(tier: Tier, tmp_path: Path) -> None:
    """Square brackets are no markup, JSON has no NaN, and no column hides another of the same name."""
    odd = "select '[/x] [y] :smile:' as `[z]`, double('NaN') as n"
    printed = asked(tier, odd)
    assert "[/x] [y] :smile:" in printed
    assert "[z]" in printed
    assert json.loads(asked(tier, odd, "--json")) == {"[z]": "[/x] [y] :smile:", "n": "nan"}
    with pytest.raises(BadArgument, match="several columns have this name"):
        asked(tier, "select 1 as a, 2 as a", "--json")
    asked(tier, "select 1 as `a``b`", "--out", str(tmp_path / "odd.csv"))
    assert (tmp_path / "odd.csv").read_text() == "a`b\n1\n"


def test_what_is_wrong_is_said(tier: Tier, journals: str) -> None:
    """K5: a wrong column, table or word is refused with what would be right, and no traceback."""

    def refused(statement: str) -> str:
        with pytest.raises(BadArgument) as error:
            query(tier.spark, tier.endpoints, statement, Selection((journals,)))
        return str(error.value)

    said = refused("select keyy from journal")
    assert "there is no column `keyy`" in said
    assert "`key`" in said
    said = refused("select * from topic_nobody_knows")
    assert "there is no table `topic_nobody_knows`" in said
    assert view_name("topic", journals) in said
    assert view_name("topic", journals) in refused("select * from nothing_of_ours")
    assert "[PARSE_SYNTAX_ERROR]" in refused("selekt 1")
    other = journals.replace("-", ".")
    tier.on(lambda log, _: log.admin.create(other, partitions=1, config=TopicConfig()))
    assert "could be any of the topics" in refused(f"select * from {view_name('topic', journals)}")


def test_times_are_those_of_utc_on_any_machine(tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    """K5: what is printed is what a statement compares with, also within arrays, in any year."""
    statement = (
        "select timestamp'2026-01-01 12:00:00' as a, array(timestamp'0001-01-01 00:00:00') as b, "
        "timestamp_ntz'9999-12-31 23:59:59' as c, named_struct('timestamp', timestamp'2026-01-01 12:00:00') as a"
    )
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        printed = asked(tier, statement)
        with pytest.raises(OperationFailed, match="year"):
            asked(tier, "select timestamp_seconds(9000000000000)")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert '2026-01-01 12:00:00.000  ["0001-01-01 00:00:00.000"]  9999-12-31 23:59:59.000' in printed
    assert '"2026-01-01 12:00:00.000"' in printed


def test_a_folder_with_spaces_takes_the_file(tier: Tier, tmp_path: Path) -> None:
    """K5: rows go to the file that was named, and nothing is left beside it."""
    folder = tmp_path / "my folder%20"
    asked(tier, "select 1 as n", "--out", str(folder / "x y#1.parquet"))
    assert pq.read_table(folder / "x y#1.parquet").to_pylist() == [{"n": 1}]
    assert [path.name for path in tmp_path.rglob("*")] == ["my folder%20", "x y#1.parquet"]


@pytest.mark.parametrize(
    "statement",
    [
        "select key as `it's` from journal where topic = 'a'",
        'select key as `5"` from journal where topic = "a"',
        "select r'C:\\' from journal where topic = 'a'",
        'select R"C:\\" from journal where topic = "a"',
        "/* it's /* nested */ */ select 'it\\'s' from `journal` -- don't",
    ],
)
def test_quotes_hide_no_table(statement: str) -> None:
    """K5: a table is found behind names with quotes, raw texts and comments; those in texts are not opened."""
    assert "journal" in words_of(statement)
    assert not words_of("select 'meta', \"meta\", r'meta' -- meta\n/* meta /* meta */ meta */") & {"meta"}


def test_a_held_journal_is_said_in_one_line(tier: Tier, topic: str) -> None:
    """K5: what fails in a worker comes out as one sentence; --skip-held leaves the journal out."""
    tier.with_journal(topic, lambda journal: append_all(journal, 2, 1), partitions=1)
    poison = NewRecord(topic, b"k0", b"?", (("journal.action", b"?"),), partition=0)
    tier.on(lambda log, _: log.append([poison]))
    with pytest.raises(HeadraceError) as error:
        asked(tier, "select key from journal", "--topics", topic)
    assert isinstance(error.value, OperationFailed)
    assert "journal 'k0' is held from offset 2" in str(error.value)
    assert "Traceback" not in str(error.value)
    rows = asked(tier, "select key from journal", "--topics", topic, "--skip-held", "--json")
    assert json.loads(rows) == {"key": "k1"}


@avro(namespace="shop")
@dataclasses.dataclass
class PriceKey:
    id: str


@avro(namespace="shop")
@dataclasses.dataclass
class Price:
    price: float
    currency: str = "EUR"


PARTS: dict[str, Any] = {"key": PriceKey, "value": Price}


def test_topics_and_journals_of_avro_are_typed(tier: Tier, topic: str) -> None:
    """K6: `headrace sql` has typed keys, values and events of what the registry has schemas for, and text of others."""
    address = f"log:{topic}-schemas"
    with BlockingRegistry(address, log_address=tier.endpoints.log) as registry:
        serdes = {part: Serde[Any](registry.registry, f"{topic}-{part}", cls) for part, cls in PARTS.items()}
        pairs = [("a", 1.5), ("b", 2.5), ("a", 3.5)]
        data = [(registry.run(serdes["key"].encode(PriceKey(id_))), price) for id_, price in pairs]
        framed = [NewRecord(topic, key, registry.run(serdes["value"].encode(Price(price)))) for key, price in data]
        payloads = Payloads(registry.registry, f"{topic}-j", [Price])
        events = registry.run(payloads.events(1, [Price(7.5)]))

    async def fill(log: Any, _: Any) -> None:
        await log.admin.create(topic, partitions=2, config=TopicConfig())
        await log.append([*framed, NewRecord(topic, framed[1].key, None)])

    tier.on(fill)
    tier.with_journal(f"{topic}-j", lambda journal: journal.append("k", [*events, Event(2, {"json": 1})]), partitions=1)
    statement = f"select key.id, value.price, value.currency, length(value_bytes) from {view_name('compact', topic)}"
    rows = asked(tier, statement, "--registry", address, "--json")
    assert list(json.loads(rows).values()) == ["a", 3.5, "EUR", 17]
    statement = "select event_type, event.Price.price, payload_text from journal order by seq_nr"
    rows = asked(tier, statement, "--topics", f"{topic}-j", "--registry", address, "--json")
    assert [list(json.loads(line).values()) for line in rows.splitlines()] == [
        ["shop.Price", 7.5, None],
        [None, None, '{"json":1}'],
    ]
    tier.on(lambda log, _: log.append([NewRecord(topic, framed[0].key, b"{}")]))
    with pytest.raises(OperationFailed, match="are not all framed Avro: not the record at") as error:
        asked(tier, f"select value from {view_name('compact', topic)}", "--registry", address)
    assert "SQLSTATE" not in str(error.value)


def test_without_a_statement_many_are_read(tier: Tier, journals: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """K5: statements from standard input are answered in one session; a time and a number are drawn."""
    endpoints = ["--log", tier.endpoints.log, *([] if tier.is_embedded else ["--store", tier.endpoints.store])]
    monkeypatch.setenv("COLUMNS", "90")
    text = "select 1 as one;\ntables\nselect timestamp, seq_nr from journal\n"
    done = CliRunner().invoke(app, ["sql", "--topics", journals, "--plot", *endpoints], input=text)
    assert isinstance(done.exception, BadArgument)  # the first rows have no time
    assert "a plot needs one column with a time" in str(done.exception)
    done = CliRunner().invoke(app, ["sql", "--topics", journals, *endpoints], input=text)
    assert done.exception is None, done.exception
    assert {"one", "journal", view_name("state", journals), "seq_nr"} <= set(done.output.split())
    drawn = asked(tier, "select timestamp, seq_nr from journal", "--topics", journals, "--plot")
    assert "timestamp (UTC)" in drawn
    assert "one statement" in asked(tier, "--out", "x.csv", is_good=False)


def test_a_token_is_waited_for(tier: Tier, journals: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows show the write of --at-least: journals include the log's head, heads wait for replication."""
    written = tier.with_journal(journals, lambda journal: journal.append("new", [Event(1)]))
    where = ["--topics", journals, "--json", "--at-least", written.token]
    assert json.loads(asked(tier, "select count(*) as n from journal where key = 'new'", *where)) == {"n": 1}
    heads = "select seq_nr from meta where key = 'new'"
    with monkeypatch.context() as patch:
        patch.setattr(sql_views, "_TOKEN_TIMEOUT_S", 0.1)
        assert "is replicated" in asked(tier, heads, *where, is_good=False)
    tier.on(lambda log, store: replicate(log, store, journals))
    assert json.loads(asked(tier, heads, *where)) == {"seq_nr": 1}
    assert "can't be used" in asked(tier, heads, "--at-least", "garbage", is_good=False)
