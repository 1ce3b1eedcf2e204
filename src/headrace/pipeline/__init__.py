"""All bulk movement of data, on Spark: replication of journals, views of topics, SQL, expiry, back-fill, audit.

Promises: a job can be stopped, killed or run twice at any moment without harm to the data; the stored offsets are the
only thing that says how far it has come. Does not promise: low latency. A micro-batch costs a third of a second, so
readers follow the head of the log by themselves.
"""

from __future__ import annotations

from headrace.pipeline.audit import AuditReport, audit
from headrace.pipeline.backfill import BackfillSummary, backfill
from headrace.pipeline.expiry import ExpirySummary, purge_expired
from headrace.pipeline.findings import Finding, FindingKind
from headrace.pipeline.frames import journal_frame, meta_frame, pointer_frame
from headrace.pipeline.losses import accept_loss
from headrace.pipeline.places import Places
from headrace.pipeline.planning import Plan, Selection, topics_of
from headrace.pipeline.replication import Replication, Summary
from headrace.pipeline.session import spark_session
from headrace.pipeline.sql_views import query
from headrace.pipeline.states import state_as_of
from headrace.pipeline.topic_frames import compact, topic_frame
from headrace.pipeline.topic_writes import Appended, append_frame
from headrace.pipeline.watching import BatchReport, ReplicationWatcher

__all__ = [
    "Appended",
    "AuditReport",
    "BackfillSummary",
    "BatchReport",
    "ExpirySummary",
    "Finding",
    "FindingKind",
    "Places",
    "Plan",
    "Replication",
    "ReplicationWatcher",
    "Selection",
    "Summary",
    "accept_loss",
    "append_frame",
    "audit",
    "backfill",
    "compact",
    "journal_frame",
    "meta_frame",
    "pointer_frame",
    "purge_expired",
    "query",
    "spark_session",
    "state_as_of",
    "topic_frame",
    "topics_of",
]
