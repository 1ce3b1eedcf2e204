"""Errors of workers as a driver can show them: Spark hands over text only."""

from __future__ import annotations

from headrace.errors import HeadraceError

__all__ = ["told"]


def told(error: BaseException) -> str:
    """Return an error in one line."""
    return str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
