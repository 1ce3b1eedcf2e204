"""All bulk movement of data, on Spark: replication of journals, views of topics, SQL, expiry, back-fill, audit.

Promises: a job can be stopped, killed or run twice at any moment without harm to the data; the stored offsets are the
only thing that says how far it has come. Does not promise: low latency. A micro-batch costs a third of a second, so
readers follow the head of the log by themselves.
"""

from __future__ import annotations

from headrace.pipeline.comparing.findings import Finding, FindingKind
from headrace.pipeline.jobs.audit import AuditReport, audit
from headrace.pipeline.jobs.backfill import BackfillSummary, backfill
from headrace.pipeline.jobs.expiry import ExpirySummary, purge_expired
from headrace.pipeline.jobs.tag_backfill import TagBackfillSummary, backfill_tag
from headrace.pipeline.logs.planning import Plan, Selection, topics_of
from headrace.pipeline.replicating.losses import accept_loss
from headrace.pipeline.replicating.replication import Replication, Summary
from headrace.pipeline.replicating.watching import BatchReport, ReplicationWatcher
from headrace.pipeline.spark.packaging import package
from headrace.pipeline.spark.places import Places
from headrace.pipeline.spark.session import spark_session
from headrace.pipeline.tables.frames import journal_frame, meta_frame, pointer_frame
from headrace.pipeline.tables.sql_views import query
from headrace.pipeline.tables.states import state_as_of
from headrace.pipeline.topics.topic_frames import compact, topic_frame
from headrace.pipeline.topics.topic_writes import Appended, append_frame
from headrace.pipeline.topics.typed_frames import typed

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
    "TagBackfillSummary",
    "accept_loss",
    "append_frame",
    "audit",
    "backfill",
    "backfill_tag",
    "compact",
    "journal_frame",
    "meta_frame",
    "package",
    "pointer_frame",
    "purge_expired",
    "query",
    "spark_session",
    "state_as_of",
    "topic_frame",
    "topics_of",
    "typed",
]
