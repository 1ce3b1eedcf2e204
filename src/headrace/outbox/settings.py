"""The outbox's settings: those of `headrace.config`, under the room's own name."""

from __future__ import annotations

from headrace.config import OutboxSettings

__all__ = ["OutboxSettings"]
