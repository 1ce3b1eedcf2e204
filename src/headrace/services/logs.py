"""The servers' output, followed as `tail -f` does."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TextIO

from headrace.services.nodes import ServerNode

__all__ = ["follow"]

LOOK_EVERY_S = 0.2


def follow(nodes: Sequence[ServerNode]) -> Iterator[tuple[ServerNode, str]]:
    """Yield every line that the servers print from now on, with its node; ends when no server runs any more."""
    with ExitStack() as open_files:
        files = [(node, open_files.enter_context(_at_end(node))) for node in nodes if node.plan.log.exists()]
        while True:
            is_last = not any(node.is_running for node in nodes)
            for node, file in files:
                yield from ((node, line.rstrip("\n")) for line in _new_lines(file))
            if is_last:
                return
            time.sleep(LOOK_EVERY_S)


def _at_end(node: ServerNode) -> TextIO:
    file = node.plan.log.open(errors="replace")
    file.seek(0, 2)
    return file


def _new_lines(file: TextIO) -> Iterator[str]:
    while True:
        at = file.tell()
        line = file.readline()
        if not line.endswith("\n"):
            file.seek(at)  # half a line: wait for the rest
            return
        yield line
