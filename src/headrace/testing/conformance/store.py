"""The conformance suite of an eventual store, assembled from one module for each part of the port."""

from __future__ import annotations

from headrace.testing.conformance.store_heads import Heads
from headrace.testing.conformance.store_journals import ManyJournals
from headrace.testing.conformance.store_order import Order, Ranges
from headrace.testing.conformance.store_rows import Rows
from headrace.testing.conformance.store_shared import SettingsAndClosing
from headrace.testing.conformance.store_snapshots import SavedStates
from headrace.testing.conformance.store_tags import TaggedRows

__all__ = ["StoreConformance"]


class StoreConformance(Rows, Heads, ManyJournals, Order, Ranges, SavedStates, SettingsAndClosing, TaggedRows):
    """The whole suite of a store; a backend overrides `address` and `by_hand`."""
