"""Journals: per-entity events, kept as actions in the log, replicated into a store, and always read right.

Promises: an append is atomic and durable; a read that starts after it returned sees it; a read gives a state that the
log had, or raises; records are kafka-journal's, so that JVM services can share a topic.
Does not promise: an order between entities, and no bulk movement: that is the pipeline's.
"""

from headrace.journal.growing import grow_topic
from headrace.journal.head_cache import HeadCache
from headrace.journal.history import Moment
from headrace.journal.journal import Journal
from headrace.journal.layout import Layout
from headrace.journal.limits import UNCHECKED, Expected, Unchecked
from headrace.journal.quarantine import Held, held_journals, pass_verdict
from headrace.journal.replicating import Replicated, replicate_batch
from headrace.journal.retention import JOURNAL_TOPIC, TimeLeft, TopicTerms, retention_probe, time_left
from headrace.journal.snapshots import JournalSnapshots, Snapshot
from headrace.journal.stats import PartitionStats
from headrace.journal.topology import Topology

__all__ = [
    "JOURNAL_TOPIC",
    "UNCHECKED",
    "Expected",
    "HeadCache",
    "Held",
    "Journal",
    "JournalSnapshots",
    "Layout",
    "Moment",
    "PartitionStats",
    "Replicated",
    "Snapshot",
    "TimeLeft",
    "TopicTerms",
    "Topology",
    "Unchecked",
    "grow_topic",
    "held_journals",
    "pass_verdict",
    "replicate_batch",
    "retention_probe",
    "time_left",
]
