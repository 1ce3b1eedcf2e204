"""Finding the backend that serves an address, ours or another package's."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from headrace.errors import UnknownBackend

__all__ = ["load_backend"]


def load_backend(room: str, address: str) -> Any:  # noqa: ANN401  (each room knows what its backends are)
    """Return what the entry point of the group `headrace.<room>` stands for that is named by the address's scheme."""
    scheme = address.partition(":")[0]
    found = {entry.name: entry for entry in entry_points(group=f"headrace.{room}")}
    if scheme not in found:
        raise UnknownBackend(room, address, tuple(sorted(f"{name}:" for name in found)))
    return found[scheme].load()
