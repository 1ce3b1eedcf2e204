"""Spark jobs and DataFrames: replication of journals, topics and journals as tables, SQL, expiry, back-fill, audit.

Promises: a job can be stopped, killed or run twice at any moment without harm to the data; only the stored offsets
record how far a job has come. Does not promise: low latency. A micro-batch takes a third of a second, so readers
follow the head of the log without Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy_names import lazy_names

# Spark starts a process for each kind of work, and each of them imports this module: names are imported on first use.
if TYPE_CHECKING:
    from headrace.pipeline.audits.findings import Finding as Finding
    from headrace.pipeline.audits.findings import FindingKind as FindingKind
    from headrace.pipeline.jobs.aggregates import EngineReference as EngineReference
    from headrace.pipeline.jobs.audit import AuditReport as AuditReport
    from headrace.pipeline.jobs.audit import audit as audit
    from headrace.pipeline.jobs.backfill import BackfillSummary as BackfillSummary
    from headrace.pipeline.jobs.backfill import backfill as backfill
    from headrace.pipeline.jobs.engine_audit import audit_states as audit_states
    from headrace.pipeline.jobs.engine_rebuild import RebuildSummary as RebuildSummary
    from headrace.pipeline.jobs.engine_rebuild import rebuild_states as rebuild_states
    from headrace.pipeline.jobs.engine_replay import replay_journals as replay_journals
    from headrace.pipeline.jobs.expiry import ExpirySummary as ExpirySummary
    from headrace.pipeline.jobs.expiry import purge_expired as purge_expired
    from headrace.pipeline.jobs.exports import ExportSummary as ExportSummary
    from headrace.pipeline.jobs.exports import export_journals as export_journals
    from headrace.pipeline.jobs.exports import exported_frame as exported_frame
    from headrace.pipeline.jobs.imports import ImportSummary as ImportSummary
    from headrace.pipeline.jobs.imports import import_journals as import_journals
    from headrace.pipeline.jobs.state_load import LoadSummary as LoadSummary
    from headrace.pipeline.jobs.state_load import StateGroup as StateGroup
    from headrace.pipeline.jobs.state_load import load_keyspace as load_keyspace
    from headrace.pipeline.jobs.state_load import load_state as load_state
    from headrace.pipeline.jobs.tag_backfill import TagBackfillSummary as TagBackfillSummary
    from headrace.pipeline.jobs.tag_backfill import backfill_tag as backfill_tag
    from headrace.pipeline.logs.plan import Plan as Plan
    from headrace.pipeline.logs.plan import Selection as Selection
    from headrace.pipeline.logs.plan import topics_of as topics_of
    from headrace.pipeline.replication.display import LineDisplay as LineDisplay
    from headrace.pipeline.replication.display import display_on as display_on
    from headrace.pipeline.replication.replication import Replication as Replication
    from headrace.pipeline.replication.replication import Summary as Summary
    from headrace.pipeline.replication.replication import accept_loss as accept_loss
    from headrace.pipeline.replication.reports import BatchReport as BatchReport
    from headrace.pipeline.replication.reports import ReplicationWatcher as ReplicationWatcher
    from headrace.pipeline.spark.endpoints import Endpoints as Endpoints
    from headrace.pipeline.spark.package import package as package
    from headrace.pipeline.spark.process import close_all as close_all
    from headrace.pipeline.spark.process import log_of as log_of
    from headrace.pipeline.spark.process import run as run
    from headrace.pipeline.spark.process import store_of as store_of
    from headrace.pipeline.spark.session import end_session as end_session
    from headrace.pipeline.spark.session import spark_session as spark_session
    from headrace.pipeline.tables.frames import journal_frame as journal_frame
    from headrace.pipeline.tables.frames import meta_frame as meta_frame
    from headrace.pipeline.tables.frames import pointer_frame as pointer_frame
    from headrace.pipeline.tables.frames import state_as_of as state_as_of
    from headrace.pipeline.tables.sql_views import query as query
    from headrace.pipeline.tables.sql_views import query_error as query_error
    from headrace.pipeline.tables.sql_views import table_names as table_names
    from headrace.pipeline.tables.state_frames import state_frame as state_frame
    from headrace.pipeline.topics.append import Appended as Appended
    from headrace.pipeline.topics.append import append_frame as append_frame
    from headrace.pipeline.topics.frames import compact as compact
    from headrace.pipeline.topics.frames import topic_frame as topic_frame
    from headrace.pipeline.topics.frames import typed as typed

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "headrace.pipeline.audits.findings": "Finding FindingKind",
        "headrace.pipeline.jobs.aggregates": "EngineReference",
        "headrace.pipeline.jobs.audit": "AuditReport audit",
        "headrace.pipeline.jobs.backfill": "BackfillSummary backfill",
        "headrace.pipeline.jobs.engine_audit": "audit_states",
        "headrace.pipeline.jobs.engine_rebuild": "RebuildSummary rebuild_states",
        "headrace.pipeline.jobs.engine_replay": "replay_journals",
        "headrace.pipeline.jobs.expiry": "ExpirySummary purge_expired",
        "headrace.pipeline.jobs.exports": "ExportSummary export_journals exported_frame",
        "headrace.pipeline.jobs.imports": "ImportSummary import_journals",
        "headrace.pipeline.jobs.state_load": "LoadSummary StateGroup load_keyspace load_state",
        "headrace.pipeline.jobs.tag_backfill": "TagBackfillSummary backfill_tag",
        "headrace.pipeline.logs.plan": "Plan Selection topics_of",
        "headrace.pipeline.replication.display": "LineDisplay display_on",
        "headrace.pipeline.replication.replication": "Replication Summary accept_loss",
        "headrace.pipeline.replication.reports": "BatchReport ReplicationWatcher",
        "headrace.pipeline.spark.endpoints": "Endpoints",
        "headrace.pipeline.spark.package": "package",
        "headrace.pipeline.spark.process": "close_all log_of run store_of",
        "headrace.pipeline.spark.session": "end_session spark_session",
        "headrace.pipeline.tables.frames": "journal_frame meta_frame pointer_frame state_as_of",
        "headrace.pipeline.tables.sql_views": "query query_error table_names",
        "headrace.pipeline.tables.state_frames": "state_frame",
        "headrace.pipeline.topics.append": "Appended append_frame",
        "headrace.pipeline.topics.frames": "compact topic_frame typed",
    },
    extras={"pyspark": "pipeline", "pyarrow": "pipeline"},
)
