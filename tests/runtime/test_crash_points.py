"""Crash points: free when unarmed, fatal when armed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import timeit
from pathlib import Path

import pytest

from headrace.errors import BadArgument
from headrace.runtime import CRASH_AT_VARIABLE, CRASH_FILE_VARIABLE, crash_point, crash_points
from headrace.testing.crashes import SimulatedCrash, crash_at, recording

THREE_POINTS = """
import os
from headrace.runtime import crash_point
for turn in range(3):
    crash_point("before")
    os.write(1, b"%d " % turn)
    crash_point("after")
os.write(1, b"end")
"""


def run_armed(at: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, CRASH_AT_VARIABLE: at}
    return subprocess.run([sys.executable, "-c", THREE_POINTS], env=environ, capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize(
    ("at", "seen"), [("before", ""), ("after", "0 "), ("before:2", "0 "), ("after:3", "0 1 2 "), ("before:1", "")]
)
def test_an_armed_process_is_killed_at_the_nth_pass(at: str, seen: str) -> None:
    """HEADRACE_CRASH_AT kills with SIGKILL exactly where it says."""
    died = run_armed(at)
    assert (died.returncode, died.stdout) == (-signal.SIGKILL, seen)


@pytest.mark.parametrize("at", ["elsewhere", "before:9", ""])
def test_a_point_that_is_not_passed_kills_nobody(at: str) -> None:
    """A name or count that never comes leaves the process alone."""
    lived = run_armed(at)
    assert (lived.returncode, lived.stdout) == (0, "0 1 2 end")


@pytest.mark.parametrize("at", ["before:x", ":2", "before:0", "before:-1"])
def test_a_malformed_variable_is_an_error(at: str) -> None:
    """A variable nobody understands is not ignored: the test would prove nothing."""
    failed = run_armed(at)
    assert failed.returncode == 1
    assert f"environment: HEADRACE_CRASH_AT: {at!r} is not a crash point; write name or name:n" in failed.stderr


def run_with_file(path: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, CRASH_FILE_VARIABLE: str(path)}
    return subprocess.run([sys.executable, "-c", THREE_POINTS], env=environ, capture_output=True, text=True, timeout=30)


def test_a_file_kills_one_process_and_no_other(tmp_path: Path) -> None:
    """HEADRACE_CRASH_FILE: the first that comes by dies and takes the file along; without it nobody does."""
    path = tmp_path / "at"
    path.write_text("after:2")
    died, lived = run_with_file(path), run_with_file(path)
    assert (died.returncode, died.stdout) == (-signal.SIGKILL, "0 1 ")
    assert (lived.returncode, lived.stdout) == (0, "0 1 2 end")
    assert not path.exists()


def test_a_malformed_file_is_an_error(tmp_path: Path) -> None:
    """What nobody understands is not ignored, whether it stands in the variable or in the file."""
    path = tmp_path / "at"
    path.write_text("before:x")
    assert "is not a crash point" in run_with_file(path).stderr


def test_a_simulated_crash_happens_once_at_the_nth_pass() -> None:
    """In-process, the n-th pass raises; passes before and after it don't."""
    with crash_at("here", nth=2):
        crash_point("here")
        crash_point("there")
        with pytest.raises(SimulatedCrash) as crash:
            crash_point("here")
        crash_point("here")
    crash_point("here")
    assert (crash.value.name, crash.value.nth) == ("here", 2)


def test_error_handlers_do_not_survive_a_simulated_crash() -> None:
    """`except Exception` lets it through, as it would not survive a kill."""

    def careful() -> None:
        try:
            crash_point("here")
        except Exception:
            pytest.fail("a crash was caught")

    with crash_at("here"), pytest.raises(SimulatedCrash):
        careful()


def test_all_points_an_operation_crosses_are_recorded() -> None:
    """A test can list the points, in order and from any thread, and then crash at each."""
    with recording() as names:
        crash_point("one")
        thread = threading.Thread(target=crash_point, args=("two",))
        thread.start()
        thread.join()
    crash_point("three")
    assert names == ["one", "two"]


def test_recording_sees_the_point_that_crashes() -> None:
    """Recording and crashing work together."""
    with recording() as names, crash_at("two"):
        crash_point("one")
        with pytest.raises(SimulatedCrash):
            crash_point("two")
    assert names == ["one", "two"]


def test_passes_are_counted_from_one() -> None:
    """Pass 0 does not exist."""
    with pytest.raises(BadArgument, match="counted from 1"), crash_at("here", nth=0):
        pass


def test_an_unarmed_point_costs_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than a microsecond of the processor's time; about 50 ns on a quiet machine."""
    monkeypatch.setattr(crash_points, "_watch", None)  # tests of Spark's workers arm this process for good
    passes = 20_000
    timed = timeit.repeat(lambda: crash_point("hot"), number=passes, repeat=5, timer=time.thread_time)
    best_s = min(timed) / passes
    assert best_s < 1e-6
