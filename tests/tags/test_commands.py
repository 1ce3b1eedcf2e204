"""`headrace tags` and `headrace projection`, as a person meets them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result
from tests.suites.tags_trimming import Minutes
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.errors import BadArgument, TagTrimmed
from headrace.log import open_log
from headrace.model import Event
from headrace.store import open_store
from headrace.sync import connect

DEFINITION = """
from sqlalchemy import text
from headrace.projection import Projection

def count(connection, event):
    connection.execute(text("CREATE TABLE IF NOT EXISTS seen (id TEXT, number INTEGER)"))
    connection.execute(text("INSERT INTO seen VALUES (:id, :n)"), {"id": event.id, "n": event.number})

def clear(connection):
    connection.execute(text("DELETE FROM seen"))

counted = Projection("counted", "vip", count, database="sqlite:///projection.db", reset=clear)
no_projection = 1
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with some tagged events, and a projection."""
    (tmp_path / "shop.py").write_text(DEFINITION)
    with connect(f"embedded:{tmp_path / 'data'}") as hr:
        accounts = hr.journal("accounts", partitions=2)
        for id_ in ("a", "b"):
            accounts.append(id_, [Event(1, {"opened": 1}, tags=("vip",)), Event(2, "text", tags=("vip", "new"))])
        assert [event.id for event in hr.events_by_tag("new")] == ["a", "b"]
    return tmp_path


@pytest.fixture
def headrace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """Run the command there."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HEADRACE__LOG__ADDRESS", "embedded:./data")
    yield lambda *arguments: CliRunner().invoke(app, list(arguments))
    sys.modules.pop("shop", None)


@pytest.mark.parametrize("command", [("tags", "list"), ("journal", "ids", "accounts")])
def test_a_list_says_what_it_can_not_show_yet(headrace: Callable[..., Result], command: tuple[str, ...]) -> None:
    """X6: nothing is replicated: the list is empty, says why, and what to run; JSON stays JSON."""
    shown = headrace(*command)
    assert shown.exit_code == 0, shown.output
    assert "accounts" not in shown.stdout
    assert "records of the log are not replicated yet" in shown.stderr
    assert "headrace pipeline replicate" in shown.stderr
    assert headrace(*command, "--json").stdout == ""


def test_views_by_tag_are_given_up(headrace: Callable[..., Result]) -> None:
    """FT7: once, after a question; then queries say what to run."""
    assert headrace("tags", "list").exit_code == 0
    assert headrace("tags", "off").exit_code == 1
    assert "tags.enabled = false" in headrace("tags", "off", "--yes").stdout
    assert "no views by tag" in headrace("tags", "off", "--yes").stdout


def test_a_tag_is_followed(headrace: Callable[..., Result]) -> None:
    """T1, T5: what is there, as lines and as JSON whose offset can be given back."""
    shown = headrace("tags", "follow", "vip", "--current")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.count("accounts/") == 4
    lines = headrace("tags", "follow", "vip", "--current", "--json").stdout.splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["number"] for event in events] == [1, 2, 1, 2]
    rest = headrace("tags", "follow", "vip", "--json", "--limit", "1", "--after", events[2]["offset"])
    assert json.loads(rest.stdout) == events[3]
    assert headrace("tags", "follow", "vip", "--current", "--after", "2100-01-01T00:00Z").stdout == ""
    refused = headrace("tags", "follow", "vip", "--after", "yesterday")
    assert "neither an offset nor a time" in str(refused.exception)


def test_several_tags_are_followed(headrace: Callable[..., Result]) -> None:
    """T34: in one order, an event with both tags once; an offset goes on with both."""
    lines = headrace("tags", "follow", "new", "vip", "--current", "--json").stdout.splitlines()
    events = [json.loads(line) for line in lines]
    assert sorted((event["id"], event["seq_nr"]) for event in events) == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
    rest = headrace("tags", "follow", "vip", "new", "--json", "--limit", "1", "--after", events[2]["offset"])
    shown = json.loads(rest.stdout)
    assert (shown["id"], shown["seq_nr"]) == (events[3]["id"], events[3]["seq_nr"])


def test_old_events_are_trimmed(headrace: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    """T6: after a question, by a time or by the settings; a query from the start then says how to go on."""
    tag, third = asyncio.run(_fill_minutes("embedded:./minutes"))
    monkeypatch.setenv("HEADRACE__LOG__ADDRESS", "embedded:./minutes")
    monkeypatch.setenv("HEADRACE__TAGS__BUCKET", "MINUTE")
    assert "no retention is set" in str(headrace("tags", "trim", "--yes").exception)
    assert "it is no time" in str(headrace("tags", "trim", "--before", "long ago", "--yes").exception)
    assert headrace("tags", "trim", "--before", third).exit_code == 1  # nobody says yes
    assert headrace("tags", "trim", "--before", third, "--yes").stdout == f"{tag}  buckets removed: 2\n"
    assert "nothing is that old" in headrace("tags", "trim", "--before", third, "--yes").stdout
    refused = headrace("tags", "follow", tag, "--current")
    assert isinstance(refused.exception, TagTrimmed)
    assert headrace("tags", "follow", tag, "--current", "--skip-trimmed").stdout.count("#") == 3
    monkeypatch.setenv("HEADRACE__TAGS__RETENTION_S", '{"*": 60}')
    assert json.loads(headrace("tags", "trim", tag, "--yes", "--json").stdout) == {tag: 3}


async def _fill_minutes(address: str) -> tuple[str, str]:
    """Write an event a minute, a day ago; returns the tag, and when the third minute begins."""
    log, store = await open_log(address), await open_store(address)
    scene = Minutes(log, store, bucket="MINUTE")
    await scene.new_topic()
    await scene.begin()
    await scene.fill("a")
    await store.close()
    await log.close()
    return scene.tag, scene.minute(3).isoformat()


def test_tags_are_listed_and_repaired(headrace: Callable[..., Result]) -> None:
    """X6: nothing before replication; a repair must be told what to repair, and a deletion brings replication along."""
    assert "no tags yet" in headrace("tags", "list").stdout
    assert headrace("tags", "list", "--topic", "accounts", "--id", "a", "--json").stdout == ""
    refused = headrace("tags", "rebuild", "vip")
    assert "--all" in str(refused.exception)
    assert "rows written: 0" in headrace("tags", "rebuild", "--all").stdout
    removed = headrace("tags", "delete", "vip", "--topic", "accounts", "--id", "a", "--yes")
    assert "rows removed: 2" in removed.stdout  # replicated first, so that nothing comes after it


def test_a_projection_is_run_rebuilt_and_shown(headrace: Callable[..., Result]) -> None:
    """X6: run to the end of what is there, look, rebuild dry and in earnest."""
    assert "not all slots have begun" in headrace("projection", "status", "shop:counted").stdout
    ran = headrace("projection", "run", "shop:counted", "--current")
    assert "events handled: 4" in ran.stdout, ran.output
    status = json.loads(headrace("projection", "status", "shop:counted", "--json").stdout)
    assert (status["projection"], status["tag"], status["slots_begun"]) == ("counted", "vip", 32)
    assert "4 events would be handled" in headrace("projection", "rebuild", "shop:counted", "--dry-run").stdout
    assert "4 events handled" in headrace("projection", "rebuild", "shop:counted", "--yes").stdout
    later = headrace("projection", "rebuild", "shop:counted", "--yes", "--from", status["offset"])
    assert "0 events handled" in later.stdout


@pytest.mark.parametrize("where", ["shop", "shop:nothing", "shop:no_projection", "nowhere:counted"])
def test_what_is_no_projection_is_refused(headrace: Callable[..., Result], where: str) -> None:
    """The error says how to name one."""
    refused = headrace("projection", "run", where)
    assert isinstance(refused.exception, BadArgument)
    assert "it must name a Projection" in str(refused.exception)
