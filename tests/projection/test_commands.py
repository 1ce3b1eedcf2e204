"""`headrace projection`, as an operator meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.errors import BadArgument, OffsetAhead, TimedOut
from headrace.model import Event
from headrace.projection import Projection
from headrace.sync import SyncProjection, connect

DEFINITION = """
from pathlib import Path
from headrace.projection import Projection, Recovery, current_delivery

def note(event):
    if event.payload["n"] < 0 and not Path("fixed").exists():
        raise ValueError("negative")
    with open("seen", "a") as seen:
        seen.write(f"{event.id}{event.seq_nr}{'again' if current_delivery().is_replay else ''} ")

noted = Projection("noted", "vip", note, reset=lambda: Path("seen").write_text(""), slots=4,
                   recovery=Recovery("dead-letter"))
strict = Projection("strict", "vip", note, slots=4)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with three events, one of them bad, and projections."""
    (tmp_path / "bank.py").write_text(DEFINITION)
    with connect(f"embedded:{tmp_path / 'data'}") as hr:
        events = [Event(n, {"n": payload}, tags=("vip",)) for n, payload in ((1, 5), (2, -5), (3, 7))]
        hr.journal("accounts", partitions=2).append("a", events)
    return tmp_path


@pytest.fixture
def headrace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """Run the command there."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HEADRACE__LOG__ADDRESS", "embedded:./data")
    yield lambda *arguments, say=None: CliRunner().invoke(app, ["projection", *arguments], input=say)
    sys.modules.pop("bank", None)


def _seen(folder: Path) -> str:
    return (folder / "seen").read_text().strip()


def test_dead_letters_are_listed_replayed_and_purged(folder: Path, headrace: Callable[..., Result]) -> None:
    """FT10: the list names event, error and attempts; a replay that fails keeps the letter and exits with 1."""
    assert "events handled: 3" in headrace("run", "bank:noted", "--current").stdout
    assert _seen(folder) == "a1 a3"
    shown = headrace("dead-letters", "list", "bank:noted").stdout
    assert "event 2 of 'a' in 'accounts'" in shown
    assert "attempts: 1: ValueError: negative" in shown
    letter = json.loads(headrace("dead-letters", "list", "bank:noted", "--json").stdout)
    again = headrace("dead-letters", "replay", "bank:noted")
    assert (again.exit_code, "handled: 0, failed again: 1" in again.stdout) == (1, True)
    (folder / "fixed").touch()
    refused = headrace("dead-letters", "replay", "bank:noted", "--offset", "1:2:3:4:5")
    assert isinstance(refused.exception, BadArgument)
    assert "handled: 1" in headrace("dead-letters", "replay", "bank:noted", "--offset", letter["offset"]).stdout
    assert _seen(folder) == "a1 a3 a2"
    assert "no dead letters" in headrace("dead-letters", "list", "bank:noted").stdout
    assert "removed: 0" in headrace("dead-letters", "purge", "bank:noted", "--yes").stdout


def test_a_rebuild_warns_of_what_goes_out_again(folder: Path, headrace: Callable[..., Result]) -> None:
    """FN5: it asks, says what comes again, and the handler knows it; without a yes nothing happens."""
    headrace("run", "bank:noted", "--current")
    asked = headrace("rebuild", "bank:noted", say="n\n")
    assert asked.exit_code == 1
    assert "goes out again" in asked.stdout
    assert _seen(folder) == "a1 a3"
    assert "events handled" in headrace("rebuild", "bank:noted", say="y\n").stdout
    assert _seen(folder) == "a1again a3again"


def test_offsets_are_shown_set_skipped_and_cleared(folder: Path, headrace: Callable[..., Result]) -> None:
    """The next event is passed; slots are put back without a reset; the future is refused."""
    failed = headrace("run", "bank:strict", "--current")
    assert "event 2 of 'a'" in str(failed.exception)
    assert headrace("offset", "skip", "bank:strict", say="n\n").exit_code == 1
    assert "skipped event 2 of 'a'" in headrace("offset", "skip", "bank:strict", "--id", "a", "--yes").stdout
    assert "events handled: 1" in headrace("run", "bank:strict", "--current").stdout
    assert "has handled all" in headrace("offset", "skip", "bank:strict").stdout
    offsets = json.loads(headrace("offset", "show", "bank:strict", "--json").stdout)
    assert len(offsets) == 4
    assert "slot" in headrace("offset", "show", "bank:strict").stdout
    (folder / "fixed").touch()
    assert "slots put: 4" in headrace("offset", "set", "bank:strict", "2020-01-01", "--yes").stdout
    headrace("run", "bank:strict", "--current")
    assert _seen(folder) == "a1 a3 a1again a2again a3again"
    assert "slots put: 2" in headrace("offset", "clear", "bank:strict", "--slot", "1", "--slot", "2", "--yes").stdout
    assert isinstance(headrace("offset", "clear", "bank:strict", "--slot", "4", "--yes").exception, BadArgument)
    assert isinstance(headrace("offset", "set", "bank:strict", "2999-01-01", "--yes").exception, OffsetAhead)


def test_a_pause_is_shown_and_kept(headrace: Callable[..., Result]) -> None:
    """Status says how far behind it is and that it is paused; nothing runs until it is resumed."""
    assert "paused" in headrace("pause", "bank:noted", "--reason", "stocktaking").stdout
    assert "paused before" in headrace("pause", "bank:noted").stdout
    refused = headrace("run", "bank:noted", "--current")
    assert refused.exit_code == 1
    shown = headrace("status", "bank:noted").stdout
    assert "3 events behind" in shown
    assert "stocktaking" in shown
    status = json.loads(headrace("status", "bank:noted", "--json").stdout)
    assert (status["lag"], status["paused"]["reason"], status["workers"]) == (3, "stocktaking", {})
    assert isinstance(headrace("wait", "bank:noted", "--timeout", "0.1").exception, TimedOut)
    assert headrace("resume", "bank:noted").stdout == "resumed\n"
    assert headrace("resume", "bank:noted").stdout == "it was not paused\n"
    headrace("run", "bank:noted", "--current")
    assert headrace("wait", "bank:noted").exit_code == 0
    assert "dead letters: 1" in headrace("status", "bank:noted").stdout


def test_a_worker_runs_until_it_is_asked_to_stop(folder: Path) -> None:
    """Killed by SIGKILL, a second one goes on; at SIGTERM that one ends well, and nobody is said to run."""
    environ = {**os.environ, "HEADRACE__LOG__ADDRESS": "embedded:./data"}
    command = [sys.executable, "-m", "headrace.cli", "projection", "run", "bank:noted"]
    for signal_number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 0)):
        worker = subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            with connect(f"embedded:{folder / 'data'}") as hr, hr.projection(_noted(folder)) as noted:
                _until(partial(_is_run_by, noted, worker.pid))
                noted.caught_up(timeout_s=30)
        finally:
            worker.send_signal(signal_number)
            worker.communicate(timeout=30)
        assert worker.returncode == code
    with connect(f"embedded:{folder / 'data'}") as hr, hr.projection(_noted(folder)) as noted:
        assert worker.pid not in {report.pid for report in noted.status().workers.values()}
    assert _seen(folder) == "a1 a3"


def _is_run_by(projection: SyncProjection, pid: int) -> bool:
    return any(report.pid == pid for report in projection.status().workers.values())


def _noted(folder: Path) -> Projection:
    names: dict[str, Any] = {}
    exec((folder / "bank.py").read_text(), names)
    projection: Projection = names["noted"]
    return projection


def _until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
