"""Journals: the events of each entity, written to the log as actions, replicated into a store, and read from both.

Promises: an append is atomic and durable; a read that starts after it returned sees it; a read gives a state that the
log had, or raises; records have kafka-journal's format, so that JVM services can share a topic.
Does not promise: an order between entities; bulk movement of events, which is the pipeline's.
"""

from headrace.journal.append import AppendedEvents, AppendOptions, NewAppend, json_event_record, new_append
from headrace.journal.engine_claims import claim_for_engine, release_from_engine
from headrace.journal.growth import grow_topic
from headrace.journal.head_cache import HeadCache
from headrace.journal.history import Moment, PartitionStats, RemovedRecords, removed_records
from headrace.journal.journal import Journal
from headrace.journal.kept_heads import KeptHeads
from headrace.journal.marks import WatermarkBarrier, write_mark
from headrace.journal.quarantine import Held, held_journals, pass_verdict
from headrace.journal.read import JournalReader
from headrace.journal.replicate import Replicated, check_no_hole, replicate_batch, replicated_up_to
from headrace.journal.retention import (
    JOURNAL_TOPIC,
    RETENTION_MS,
    TimeLeft,
    TopicTerms,
    change_terms,
    check_replay,
    check_retention,
    claim_topic,
    drop_other_claims,
    journal_config,
    read_terms,
    remove_replicated,
    retention_probe,
    time_left,
    why_records_expire,
)
from headrace.journal.snapshots import JournalSnapshots, Snapshot
from headrace.journal.tokens import wait_until_replicated
from headrace.journal.topology import Topology, layout_key
from headrace.journal.window import View, Windows, fold
from headrace.protocol import UNCHECKED, Expected, Layout, Unchecked

__all__ = [
    "JOURNAL_TOPIC",
    "RETENTION_MS",
    "UNCHECKED",
    "AppendOptions",
    "AppendedEvents",
    "Expected",
    "HeadCache",
    "Held",
    "Journal",
    "JournalReader",
    "JournalSnapshots",
    "KeptHeads",
    "Layout",
    "Moment",
    "NewAppend",
    "PartitionStats",
    "RemovedRecords",
    "Replicated",
    "Snapshot",
    "TimeLeft",
    "TopicTerms",
    "Topology",
    "Unchecked",
    "View",
    "WatermarkBarrier",
    "Windows",
    "change_terms",
    "check_no_hole",
    "check_replay",
    "check_retention",
    "claim_for_engine",
    "claim_topic",
    "drop_other_claims",
    "fold",
    "grow_topic",
    "held_journals",
    "journal_config",
    "json_event_record",
    "layout_key",
    "new_append",
    "pass_verdict",
    "read_terms",
    "release_from_engine",
    "remove_replicated",
    "removed_records",
    "replicate_batch",
    "replicated_up_to",
    "retention_probe",
    "time_left",
    "wait_until_replicated",
    "why_records_expire",
    "write_mark",
]
