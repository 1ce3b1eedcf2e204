"""Backends of this and other packages, found by the scheme of their address."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from headrace.errors import UnknownBackend

__all__ = ["load_backend"]


def load_backend(room: str, address: str) -> Any:  # noqa: ANN401  (each room knows what its backends are)
    """Load the entry point of the group `headrace.<room>` that is named by the address's scheme."""
    scheme = address.partition(":")[0]
    found = {entry.name: entry for entry in entry_points(group=f"headrace.{room}")}
    if scheme not in found:
        raise UnknownBackend(room, address, tuple(sorted(f"{name}:" for name in found)))
    return found[scheme].load()
