"""Processes by name, and whether they have ended."""

from __future__ import annotations

import os

import pytest

from headrace.runtime import has_ended, process_name
from headrace.testing.processes import running

pytestmark = pytest.mark.skipif(not process_name(), reason="the kernel has no /proc")


def test_a_process_has_ended_when_it_was_killed_and_not_while_it_is_frozen() -> None:
    """Also while nobody has asked for its exit code, and though the id may be given to another process."""
    with running("-c", "import time; time.sleep(60)") as child:
        name = process_name(child.pid)
        assert name
        assert not has_ended(name)
        child.pause()
        assert not has_ended(name)
        os.kill(child.pid, 9)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        assert has_ended(name)
        assert process_name(child.pid) == ""
        child.kill()
        assert has_ended(name)


def test_this_process_runs() -> None:
    """A process with the same id that began at another time is another one."""
    name = process_name()
    assert not has_ended(name)
    assert has_ended(name + "1")


@pytest.mark.parametrize("change", [("/", "|"), ("pid:", "net:"), ("-", "+")])
def test_of_other_machines_and_containers_nobody_can_tell(change: tuple[str, str]) -> None:
    """Nothing is proved by a name that does not belong here, nor by one that can't be read."""
    assert not has_ended(process_name().replace(*change))
    assert not has_ended("")
    assert not has_ended(process_name().replace(f"/{os.getpid()}/", "/x/"))
