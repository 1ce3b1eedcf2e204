"""The `headrace` command as a person meets it: what it prints, what it says when something is wrong."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from headrace import connect
from headrace.cli import main
from headrace.journal import change_terms

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]


@pytest.fixture
def headrace(tmp_path: Path) -> Run:
    """Run the command in a folder of its own, in this process: one of its own takes a second to begin."""

    def run(*arguments: str, stdin: str = "", **environ: str) -> Done:
        out, err, code = io.StringIO(), io.StringIO(), 0
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            for name, value in {"COLUMNS": "120", **environ}.items():
                patch.setenv(name, value)
            given = {"argv": ["headrace", *arguments], "stdin": io.StringIO(stdin), "stdout": out, "stderr": err}
            for name, replaced in given.items():
                patch.setattr(sys, name, replaced)
            try:
                main()
            except SystemExit as ended:
                code = int(ended.code or 0)
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    return run


@pytest.fixture
def process(tmp_path: Path) -> Run:
    """Run the command in a folder and a process of its own."""

    def run(*arguments: str, stdin: str = "") -> Done:
        return subprocess.run(
            [sys.executable, "-m", "headrace.cli", *arguments],
            cwd=tmp_path,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "COLUMNS": "120"},
        )

    return run


def test_a_journal_from_the_command_line(headrace: Run) -> None:
    """Append, read, pointer, delete, history, purge on the embedded tier of the current folder."""
    assert "appended events 1 to 2" in headrace("journal", "append", "acc", "a", '{"opened": 1}', '"hi"').stdout
    appended = json.loads(headrace("journal", "append", "acc", "a", "--json", stdin="3\n").stdout)
    assert (appended["first"], appended["last"]) == (3, 3)
    read = headrace("journal", "read", "acc", "a", "--json", "--from", "2").stdout
    assert [json.loads(line)["payload"] for line in read.splitlines()] == ["hi", 3]
    followed = headrace("journal", "read", "acc", "a", "--json", "--from", "2", "--to", "3", "--follow").stdout
    assert followed == read
    assert headrace("journal", "ids", "acc", "--unreplicated").stdout == "a\n"
    assert headrace("journal", "ids", "acc", "--follow", "--limit", "1").stdout == "a\n"
    refused = headrace("journal", "append", "acc", "a", "7", "--expected", "7")
    assert refused.returncode == 1
    assert "expected seq_nr 7, journal is at 3" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "deleted" in headrace("journal", "delete", "acc", "a", "--to", "2").stdout
    history = headrace("journal", "history", "acc", "a").stdout
    assert "append events 1 to 2" in history
    assert "void: it expected seq_nr 7" in history
    assert "delete events up to 2" in history
    assert headrace("journal", "purge", "acc", "a", stdin="n\n").returncode == 1
    assert "purged" in headrace("journal", "purge", "acc", "a", "--yes").stdout
    assert json.loads(headrace("journal", "pointer", "acc", "a", "--json").stdout) == {"id": "a", "pointer": None}
    stats = [json.loads(line) for line in headrace("journal", "stats", "acc", "--json").stdout.splitlines()]
    assert len(stats) == 8
    assert sum(partition["lag"] for partition in stats) > 0
    assert headrace("journal", "ids", "acc").stdout == ""


def test_topics_from_the_command_line(headrace: Run) -> None:
    """Create, list, describe, grow, delete."""
    assert headrace("topic", "create", "t", "--partitions", "2").stdout == "created t with 2 partitions\n"
    again = headrace("topic", "create", "t")
    assert (again.returncode, "exists already" in again.stderr) == (1, True)
    described = json.loads(headrace("topic", "describe", "t", "--json").stdout)
    assert [partition["end"] for partition in described["partitions"]] == [0, 0]
    grown = headrace("topic", "grow", "t", "--partitions", "3", HEADRACE__JOURNAL__LEASE_S="0.1")
    assert "t has 3 partitions, in generation 1" in grown.stdout
    assert json.loads(headrace("topic", "list", "--json").stdout) == {"topic": "t"}
    assert headrace("topic", "delete", "t", "--yes").stdout == "removed t\n"


def test_a_journal_topic_from_the_command_line(headrace: Run) -> None:
    """FN1: made first without --journal it is refused, and the command of the message makes it right."""
    headrace("topic", "create", "plain")
    refused = headrace("journal", "append", "plain", "k", "1")
    assert refused.returncode == 1
    assert "drops its records after 604800000 ms" in refused.stderr
    command = "topic configure plain --journal"
    assert f"headrace {command}" in refused.stderr
    assert "until they are replicated, and for 604800000 ms" in headrace(*command.split()).stdout
    assert "appended event 1" in headrace("journal", "append", "plain", "k", "1").stdout
    headrace("topic", "create", "made", "--journal")
    assert "appended event 1" in headrace("journal", "append", "made", "k", "1").stdout
    too_long = headrace("topic", "configure", "made", "--journal", "--retention-ms", "2592000000")
    assert (too_long.returncode, "raise store.gc_grace_s" in too_long.stderr) == (1, True)
    headrace("topic", "create", "theirs", "--shared")
    assert "appended event 1" in headrace("journal", "append", "theirs", "k", "1").stdout


@pytest.mark.parametrize("declared", [("--shared",), ()])
def test_a_topic_that_keeps_its_records_forever_goes_on_doing_so(headrace: Run, declared: tuple[str, ...]) -> None:
    """FN1: another service's topic is declared without changing it; without --retention-ms nothing is shortened."""
    headrace("topic", "create", "theirs", "--retention-ms", "0")
    headrace("journal", "append", "other", "k", "1")  # makes the store
    assert headrace("topic", "configure", "theirs", *declared).stdout == "theirs keeps its records forever\n"
    assert json.loads(headrace("topic", "describe", "theirs", "--json").stdout)["config"]["retention_ms"] is None
    given = headrace("topic", "configure", "theirs", *declared, "--retention-ms", "5000", "--json")
    assert json.loads(given.stdout)["retention_ms"] == 5000
    assert json.loads(headrace("topic", "describe", "theirs", "--json").stdout)["config"]["retention_ms"] == 5000


def test_what_is_known_of_a_journal_topic_stays(headrace: Run, tmp_path: Path) -> None:
    """FN1: its retention after replication where none is given, and the engine that is its only writer."""
    headrace("topic", "create", "made", "--journal", "--retention-ms", "3600000")

    async def claimed() -> None:
        async with connect(f"embedded:{tmp_path / 'data'}") as hr:
            await change_terms(hr.store.settings, "made", lambda terms: msgspec.structs.replace(terms, engine="bank"))

    asyncio.run(claimed())
    assert "and for 3600000 ms" in headrace("topic", "configure", "made", "--journal").stdout
    assert (
        "and for 7200000 ms" in headrace("topic", "configure", "made", "--journal", "--retention-ms", "7200000").stdout
    )
    refused = headrace("journal", "append", "made", "k", "1")
    assert (refused.returncode, "engine 'bank' is the only writer" in refused.stderr) == (1, True)


def test_settings_from_the_command_line(headrace: Run, tmp_path: Path) -> None:
    """Shown with their source; all mistakes at once."""
    printed = headrace("config", "show", "--json", HEADRACE__LOG__EMBEDDED__FSYNC="false").stdout
    shown = [json.loads(line) for line in printed.splitlines()]
    fsync = next(value for value in shown if value["key"] == "log.embedded.fsync")
    assert (fsync["value"], "HEADRACE__LOG__EMBEDDED__FSYNC" in fsync["source"]) == (False, True)
    (tmp_path / "bad.toml").write_text('[log]\nadress = "x"\n[log.embedded]\nfsync = "perhaps"\n')
    refused = headrace("config", "check", "bad.toml")
    assert refused.returncode == 1
    assert "2 problems" in refused.stderr
    assert "log.adress" in refused.stderr
    assert "did you mean" in refused.stderr
    assert "log.embedded.fsync" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("topic", "describe", "nope"), "there is no topic 'nope'"),
        (("topic", "list", "--log", "pigeon://x"), "no log backend serves 'pigeon://x'"),
        (("journal", "read", "t", ""), "a journal needs an id"),
        (("journal", "read", "t", "a", "--from", "0"), "numbers start at 1"),
        (("journal", "delete", "t", "a"), "or --all"),
        (("journal", "delete", "t", "a", "--to", "1", "--all"), "one of the two"),
        (("topic", "create", "bad name"), "a topic name is"),
        (("pipeline", "quarantine", "skip", "t", "a", "--yes"), "it must name the record to skip"),
        (("journal", "pointer", "t", "a", "--store", "cassandra://127.0.0.1:1/ks"), "127.0.0.1:1"),
    ],
)
def test_what_is_wrong_is_said_in_one_message(
    headrace: Run, arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    """An error is for a person: what, which, no traceback, exit code 1."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "log.db").touch()
    done = headrace(*arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_process_says_the_same(process: Run) -> None:
    """What the tests above see in their own process is what a shell sees: output, errors, exit codes, input."""
    assert "appended events 1 to 2" in process("journal", "append", "acc", "a", stdin='{"opened": 1}\n"hi"\n').stdout
    refused = process("journal", "append", "acc", "a", "7", "--expected", "7")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("error: ")
    assert "expected seq_nr 7, journal is at 2" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_demo_ends_well(process: Run) -> None:
    """It runs through, quickly, and shows every scene."""
    done = process("demo", "--no-spark")
    assert done.returncode == 0, done.stderr
    for scene in (
        "all or nothing",
        "killed with -9",
        "nothing is replicated",
        "deleted",
        "purged",
        "deposit 20 again, with the same command id: the balance is 120; it was done before",
        "withdraw 500: rejected as overdrawn",
        "8 of 8 were known as done",
        "every balance is what its events add up to",
        "rolled back",
        "All of it took",
        "headrace demo --serve",
    ):
        assert scene in done.stdout
    assert "NOT EQUAL" not in done.stdout


def test_square_brackets_are_no_markup(headrace: Run) -> None:
    """Ids are printed as they are; one with a slash in brackets ended the command with a traceback."""
    headrace("journal", "append", "acc", "a", "1", '{"n": 1}')
    shown = headrace("journal", "history", "acc", "[/x] [y] :smile:").stdout
    assert "nothing is known of [/x] [y] :smile: in acc" in " ".join(shown.split())


def test_deleting_all_events_must_be_said(headrace: Run) -> None:
    """FN5: without --to everything would go, so the command wants --all."""
    headrace("journal", "append", "acc", "a", '{"n": 1}')
    refused = headrace("journal", "delete", "acc", "a")
    assert refused.returncode == 1
    assert "--all" in refused.stderr
    assert len(headrace("journal", "read", "acc", "a", "--json").stdout.splitlines()) == 1
    assert "deleted" in headrace("journal", "delete", "acc", "a", "--all").stdout


def test_a_misspelt_topic_is_not_made(headrace: Run) -> None:
    """FP5: a command that reads, deletes or purges creates no topic; a purge says that there is none."""
    headrace("journal", "append", "acc", "a", "1")
    assert "nothing written" in headrace("journal", "delete", "ac", "a", "--all").stdout
    assert "no topic 'ac'" in headrace("journal", "purge", "ac", "a", "--yes").stderr
    assert headrace("journal", "read", "ac", "a").returncode == 0
    assert headrace("topic", "list").stdout.split() == ["acc"]
