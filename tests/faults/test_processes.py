"""The process runner, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from headrace.errors import TimedOut, WorkerFailed
from headrace.testing.processes import ChildProcess, running, running_function

COUNTER = """
import sys, time
turn = 0
while True:
    turn += 1
    print("turn", turn, flush=True)
    time.sleep(0.005)
"""

ECHO = """
import sys
for line in sys.stdin:
    print("heard", line.strip(), flush=True)
print("end of input", flush=True)
sys.exit(3)
"""

WITH_GRANDCHILD = """
import subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("grandchild", grandchild.pid, flush=True)
time.sleep(600)
"""


def until(condition: Callable[[], bool], within_s: float = 5.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {within_s} s"
        time.sleep(0.005)


def settled_output(child: ChildProcess) -> str:
    """What the pipe still held when the child was paused arrives late; wait until nothing more does."""
    seen = [child.stdout]

    def is_quiet() -> bool:
        time.sleep(0.05)
        seen.append(child.stdout)
        return seen[-1] == seen[-2]

    until(is_quiet)
    return seen[-1]


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_lines_go_in_and_come_out() -> None:
    """A test can talk to its child and read its exit code."""
    with running("-c", ECHO) as child:
        child.send_line("one")
        assert child.wait_for_line(r"heard (\w+)").group(1) == "one"
        child.send_line("two")
        child.wait_for_line("heard two")
        child.close_input()
        assert child.wait() == 3
        assert child.stdout == "heard one\nheard two\nend of input\n"


def test_a_line_is_found_once() -> None:
    """Waiting again for the same pattern waits for the next line that has it."""
    with running("-c", "print('tick 1'); print('tock'); print('tick 2')") as child:
        assert child.wait_for_line(r"tick (\d)").group(1) == "1"
        assert child.wait_for_line(r"tick (\d)").group(1) == "2"


def test_kill_ends_it_at_once() -> None:
    """Kill -9: no handler runs, and the exit code says so."""
    with running("-c", COUNTER) as child:
        child.wait_for_line("turn 3")
        child.kill()
        assert child.exit_code == -signal.SIGKILL
        assert is_gone(child.pid)


def test_a_paused_process_does_nothing_until_it_is_resumed() -> None:
    """SIGSTOP freezes it, SIGCONT lets it go on where it stood."""
    with running("-c", COUNTER) as child:
        child.wait_for_line("turn 3")
        child.pause()
        assert psutil.Process(child.pid).status() == psutil.STATUS_STOPPED
        said = settled_output(child)
        child.resume()
        until(lambda: len(child.stdout) > len(said))


def test_terminate_asks_it_to_stop() -> None:
    """SIGTERM reaches the child's own handler."""
    code = "import signal, sys; signal.signal(15, lambda *_: sys.exit(7)); print('ready', flush=True); signal.pause()"
    with running("-c", code) as child:
        child.wait_for_line("ready")
        child.terminate()
        assert child.wait() == 7


def test_a_child_that_ends_too_early_shows_what_it_said() -> None:
    """Waiting for a line that can't come any more fails at once, with exit code and output."""
    with (
        running("-c", "import sys; print('hello'); sys.exit('broken')") as child,
        pytest.raises(
            WorkerFailed, match=r"(?s)its output ended without 'ready'; exit code 1; it said:.*hello.*broken"
        ),
    ):
        child.wait_for_line("ready", timeout_s=30)


def test_a_line_that_does_not_come_times_out() -> None:
    """The error has the pattern and what was said instead."""
    with running("-c", COUNTER) as child, pytest.raises(TimedOut, match=r"(?s)'never'.*still running; it said:.*turn"):
        child.wait_for_line("never", timeout_s=0.5)


def test_waiting_for_an_end_that_does_not_come_times_out() -> None:
    """A child that goes on is not waited for longer than asked."""
    with running("-c", COUNTER) as child, pytest.raises(TimedOut, match="still running"):
        child.wait(timeout_s=0.1)


def test_a_function_runs_in_a_child(tmp_path: Path) -> None:
    """ "module:function" is called with JSON arguments in a process of its own."""
    module = tmp_path / "made_for_a_child.py"
    module.write_text("import os\ndef report(words, times):\n    print(os.getpid(), '-'.join(words * times))\n")
    sys.path.insert(0, str(tmp_path))
    try:
        with running_function("made_for_a_child:report", ["a", "b"], 2) as child:
            assert child.wait_for_line(r"(\d+) a-b-a-b").group(1) == str(child.pid)
            assert child.wait() == 0
    finally:
        sys.path.remove(str(tmp_path))


def test_environment_is_added() -> None:
    """The child sees this process' environment and what was added."""
    code = "import os; print(os.environ['MORE'], os.environ['PATH'])"
    with running("-c", code, environ={"MORE": "yes"}) as child:
        child.wait_for_line(f"yes {os.environ['PATH']}")


def test_nothing_stays_after_the_block() -> None:
    """The child and its own children are gone, also when the test fails."""
    pids: list[int] = []

    def failing_test() -> None:
        with running("-c", WITH_GRANDCHILD) as child:
            pids.extend((child.pid, int(child.wait_for_line(r"grandchild (\d+)").group(1))))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing_test()
    until(lambda: is_gone(pids[1]))
    assert is_gone(pids[0])


def test_a_paused_child_goes_too() -> None:
    """A frozen process is no reason to stay."""
    with running("-c", COUNTER) as child:
        child.wait_for_line("turn 1")
        child.pause()
    assert is_gone(child.pid)


STARTER = f"""
import os, time
from headrace.testing.processes import running
with running("-c", {COUNTER!r}) as child:
    child.wait_for_line("turn 1")
    os.write(1, f"child {{child.pid}} of {{os.getpid()}}\\n".encode())
    time.sleep(600)
"""

FORGETFUL = f"""
import os, sys
from headrace.testing.processes import ChildProcess
child = ChildProcess([sys.executable, "-c", {COUNTER!r}])
child.wait_for_line("turn 1")
os.write(1, f"child {{child.pid}} of {{os.getpid()}}\\n".encode())
"""


def test_children_die_with_a_starter_that_was_killed() -> None:
    """Kill -9 of the test process takes its children along."""
    with subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        child = int(starter.stdout.readline().split()[1])
        assert not is_gone(child)
        starter.kill()
    until(lambda: is_gone(child))


def test_children_die_with_a_starter_that_forgot_them() -> None:
    """A child nobody ended is ended when its starter exits in order."""
    ended = subprocess.run([sys.executable, "-c", FORGETFUL], capture_output=True, text=True, timeout=30)
    assert ended.returncode == 0, ended.stderr
    until(lambda: is_gone(int(ended.stdout.split()[1])))


def test_output_is_read_while_nobody_waits() -> None:
    """A child that says a lot is not blocked by a full pipe."""
    with running(
        "-c", "import sys\nfor _ in range(20_000): sys.stderr.write('x' * 50 + '\\n')\nprint('done')"
    ) as child:
        child.wait_for_line("done", timeout_s=20)
        child.wait()
        assert child.stderr.count("\n") == 20_000
    assert not any(thread.name.startswith(f"reader-{child.pid}") for thread in threading.enumerate())
