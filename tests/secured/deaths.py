"""Killing an executor of Spark in the middle of a task, and surely there."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from tests.secured.job import counting
from tests.secured.servers import Secured
from tests.secured.watching import command_line

from headrace.services import RunningService

_BACKEND = "CoarseGrainedExecutorBackend"
_BEGUN = re.compile(r" Executor: Running task .*\(TID (\d+)\)")
_ENDED = re.compile(r" Executor: (?:Finished|Exception in) task .*\(TID (\d+)\)")


def executors_below(*pids: int) -> list[psutil.Process]:
    """Return the executors among the descendants of the processes."""
    below: list[psutil.Process] = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            below += psutil.Process(pid).children(recursive=True)
    return [each for each in below if _BACKEND in command_line(each)]


def executor_killer(
    secured: Secured, topic: str, executors: Callable[[psutil.Process], list[psutil.Process]]
) -> Callable[[psutil.Process], None]:
    """Return what kills an executor of a job when the first events of the topic are in the store."""

    def kill(job: psutil.Process) -> None:
        with counting(secured, topic) as count:
            until(lambda: count() > 0 or is_gone(job))
            kill_at_work(lambda: executors(job), store=secured.cassandra, job=job)

    return kill


def kill_at_work(executors: Callable[[], list[psutil.Process]], *, store: RunningService, job: psutil.Process) -> None:
    """Kill -9 an executor and its Python workers, as a machine that fails would, in a task that has work before it.

    The store stands still from before the task begins, so it can't have done anything of it.
    """

    def at_work() -> list[psutil.Process]:
        assert not is_gone(job), "the job was over before an executor could be killed"
        return [each for each in executors() if _is_at_work(each)]

    while True:
        until(lambda: not at_work())
        store.pause()
        try:
            if at_work():
                continue  # begun meanwhile; the next one, then
            until(lambda: bool(at_work()))
            victim = at_work()[0]
            return kill_all([victim, *victim.children(recursive=True)])
        finally:
            store.resume()


def kill_all(processes: list[psutil.Process]) -> None:
    """Kill -9, and wait until they are gone."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    until(lambda: all(map(is_gone, processes)))


def is_gone(process: psutil.Process) -> bool:
    """Say whether a process has ended; the one that started it may not have noticed yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def until(condition: Callable[[], bool], timeout_s: float = 300.0) -> None:
    """Wait for something."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def _is_at_work(executor: psutil.Process) -> bool:
    """Look into what it says of its tasks; its folder is its own."""
    try:
        said = (Path(executor.cwd()) / "stderr").read_text()
    except (psutil.NoSuchProcess, FileNotFoundError):
        return False
    return bool(set(_BEGUN.findall(said)) - set(_ENDED.findall(said)))
