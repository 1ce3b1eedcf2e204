"""What every tier must do for journals. Each part has its own module; here they come together."""

from __future__ import annotations

from tests.suites.journal_append_ids import AppendIds
from tests.suites.journal_clients import Clients
from tests.suites.journal_economy import Economy
from tests.suites.journal_growth import Growth
from tests.suites.journal_holds import Holds
from tests.suites.journal_ids import ListedIds
from tests.suites.journal_limits import Limits
from tests.suites.journal_live import LiveReading
from tests.suites.journal_made_again import TopicsMadeAgain
from tests.suites.journal_quarantine import Quarantine
from tests.suites.journal_retention import KeptRecords
from tests.suites.journal_rivals import Rivals
from tests.suites.journal_snapshots import SnapshotRing
from tests.suites.journal_store import EventualStore
from tests.suites.journal_tokens import JournalTokens

__all__ = ["JournalConformance"]


class JournalConformance(
    Clients,
    Economy,
    Growth,
    TopicsMadeAgain,
    KeptRecords,
    Quarantine,
    Rivals,
    AppendIds,
    Holds,
    Limits,
    ListedIds,
    LiveReading,
    EventualStore,
    SnapshotRing,
    JournalTokens,
):
    """The whole exam; `log_address` and `store_address` are what a tier overrides."""
