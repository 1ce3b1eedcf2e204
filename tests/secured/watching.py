"""Looking for secrets where a job may have left them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

# Looking costs; a process of Java or Python that lives shorter than this has not begun its work.
LOOK_EVERY_S = 0.1


class CommandLines:
    """The command lines of all processes of a job, looked at while it runs."""

    def __init__(self, pid: int) -> None:
        self.seen: set[str] = set()
        self._root = psutil.Process(pid)
        self._end = threading.Event()

    @contextmanager
    def watched(self) -> Iterator[CommandLines]:
        """Look while the block runs."""
        thread = threading.Thread(target=self._watch)
        thread.start()
        try:
            yield self
        finally:
            self._end.set()
            thread.join()

    def _watch(self) -> None:
        while not self._end.wait(LOOK_EVERY_S):
            try:
                processes = [self._root, *self._root.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            for process in processes:
                self.seen.add(command_line(process))


def command_line(process: psutil.Process) -> str:
    """Return how a process was called; nothing of one that has ended."""
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def holding(folders: Iterable[Path], tokens: Sequence[str]) -> list[str]:
    """Return the files in which one of the tokens stands."""
    found = []
    for folder in folders:
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            content = path.read_bytes()
            found += [f"{path}: {token}" for token in tokens if token.encode() in content]
    return found
