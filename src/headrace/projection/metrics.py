"""Metrics of projections."""

from __future__ import annotations

from headrace.observe import counter, gauge

__all__ = ["BEHIND", "FAILURES", "HANDLED", "SET_ASIDE"]

HANDLED = counter("projection", "handled", "Events that a projection has handled.", ["projection"])
BEHIND = gauge("projection", "behind", "seconds", "Age of the last event handled, by its log time.", ["projection"])
FAILURES = counter("projection", "failures", "Attempts of a projection's worker that failed.", ["projection"])
SET_ASIDE = counter(
    "projection", "set_aside", "Events that were skipped or became dead letters.", ["projection", "outcome"]
)
