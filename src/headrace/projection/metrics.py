"""What projections count."""

from __future__ import annotations

from headrace.observe import counter, gauge

__all__ = ["BEHIND", "HANDLED"]

HANDLED = counter("projection", "handled", "Events that a projection has handled.", ["projection"])
BEHIND = gauge("projection", "behind", "seconds", "Age of the last event handled, by its log time.", ["projection"])
