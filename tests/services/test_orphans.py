"""An attached server dies with its starter, whatever happens to either."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.services import start

pytestmark = [pytest.mark.servers, pytest.mark.timeout(180)]

STARTER = """
import sys, time
from headrace.services import start
service = start(sys.argv[1])
print(*service.pids, service.folder, flush=True)
time.sleep(600)
"""
BOOTING = """
import os, sys, time
from headrace.services import nodes
def tell(node, timeout_s=None):
    print(node.pid, node.plan.folder.parent, flush=True)
    time.sleep(600)
nodes.ServerNode.await_ready = tell
from headrace.services import start
start(sys.argv[1])
"""
FORKED = """
import os, sys, time
from headrace.services import start
service = start(sys.argv[1])
if os.fork() == 0:
    time.sleep(600)
print(*service.pids, service.folder, flush=True)
time.sleep(600)
"""


@contextmanager
def starter(script: str, name: str) -> Iterator[tuple[subprocess.Popen[str], psutil.Process, Path]]:
    argv = [sys.executable, "-c", script, name]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout
            pid, folder = process.stdout.readline().split()
            yield process, psutil.Process(int(pid)), Path(folder)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def is_gone(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


@pytest.mark.parametrize("name", ["kafka", "cassandra", "zookeeper", "registry", "postgres", "mariadb"])
def test_a_killed_starter_leaves_no_orphan(name: str, eventually: Any) -> None:
    """After kill -9 of the starter the server, its children, its keeper and its data are gone."""
    with starter(STARTER, name) as (process, server, folder):
        keeper = server.parent()
        family = [server, *server.children(recursive=True), *([keeper] if keeper else [])]
        assert keeper is not None
        assert keeper.ppid() == process.pid

        process.kill()

        eventually(lambda: all(map(is_gone, family)), what=f"the end of {name}")
        eventually(lambda: not folder.exists(), what="the end of its data")


def test_a_starter_killed_while_the_server_boots_leaves_no_orphan(eventually: Any) -> None:
    """The server dies even if its starter never saw it answer."""
    with starter(BOOTING, "zookeeper") as (process, server, _):
        process.kill()

        eventually(lambda: is_gone(server), what="the end of the server")


def test_a_fork_of_the_starter_does_not_keep_the_server(eventually: Any) -> None:
    """A child that inherited the lifeline does not stand in for a starter that was killed."""
    with starter(FORKED, "zookeeper") as (process, server, _):
        process.kill()

        eventually(lambda: is_gone(server), what="the end of the server")


def test_a_killed_keeper_takes_the_server_along(eventually: Any) -> None:
    """Without its keeper a server could not be seen to, so the kernel ends it."""
    with start("zookeeper") as service:
        server = psutil.Process(service.pids[0])
        keeper = server.parent()
        assert keeper is not None

        keeper.kill()

        eventually(lambda: is_gone(server), what="the end of the server")
        assert not service.nodes[0].is_running


def test_a_server_that_runs_as_another_user_dies_with_its_keeper(eventually: Any) -> None:
    """The kernel's order to die survives PostgreSQL's change of user."""
    with start("postgres") as service:
        server = psutil.Process(service.pids[0])
        keeper = server.parent()
        family = [server, *server.children(recursive=True)]
        assert keeper is not None

        keeper.kill()

        eventually(lambda: all(map(is_gone, family)), what="the end of the server")


def test_ctrl_c_in_the_starters_terminal_does_not_reach_the_server() -> None:
    """Server and keeper have sessions of their own, so that an orderly stop stays the starter's to do."""
    with start("zookeeper") as service:
        server = service.pids[0]
        keeper = psutil.Process(server).ppid()

        assert len({os.getsid(0), os.getsid(server), os.getsid(keeper)}) == 3


def test_the_starters_environment_is_not_on_a_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets of the environment reach the server by inheritance, not through what every user can list."""
    monkeypatch.setenv("HEADRACE_TEST_SECRET", "open-sesame")
    with start("zookeeper") as service:
        server = psutil.Process(service.pids[0])
        keeper = server.parent()
        assert keeper is not None

        assert server.environ()["HEADRACE_TEST_SECRET"] == "open-sesame"
        assert not any("open-sesame" in part for part in (*keeper.cmdline(), *server.cmdline()))
