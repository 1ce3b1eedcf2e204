"""What every tier must do for journals. Each part has its own module; here they come together."""

from __future__ import annotations

from headrace.testing.conformance.journal_append_ids import AppendIds
from headrace.testing.conformance.journal_clients import Clients
from headrace.testing.conformance.journal_economy import Economy
from headrace.testing.conformance.journal_growth import Growth
from headrace.testing.conformance.journal_holds import Holds
from headrace.testing.conformance.journal_limits import Limits
from headrace.testing.conformance.journal_quarantine import Quarantine
from headrace.testing.conformance.journal_retention import KeptRecords
from headrace.testing.conformance.journal_rivals import Rivals
from headrace.testing.conformance.journal_snapshots import SnapshotRing
from headrace.testing.conformance.journal_store import EventualStore

__all__ = ["JournalConformance"]


class JournalConformance(
    Clients,
    Economy,
    Growth,
    KeptRecords,
    Quarantine,
    Rivals,
    AppendIds,
    Holds,
    Limits,
    EventualStore,
    SnapshotRing,
):
    """The whole exam; `log_address` and `store_address` are what a tier overrides."""
