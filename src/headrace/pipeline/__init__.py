"""All bulk movement of data, on Spark: replication of journals, views of topics, SQL, expiry, back-fill, audit.

Promises: a job can be stopped, killed or run twice at any moment without harm to the data; the stored offsets are the
only thing that says how far it has come. Does not promise: low latency. A micro-batch costs a third of a second, so
readers follow the head of the log by themselves.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

# Spark starts a process for each kind of work, and each of them comes by here: what it does not need is not imported.
if TYPE_CHECKING:
    from headrace.pipeline.comparing.findings import Finding as Finding
    from headrace.pipeline.comparing.findings import FindingKind as FindingKind
    from headrace.pipeline.jobs.audit import AuditReport as AuditReport
    from headrace.pipeline.jobs.audit import audit as audit
    from headrace.pipeline.jobs.backfill import BackfillSummary as BackfillSummary
    from headrace.pipeline.jobs.backfill import backfill as backfill
    from headrace.pipeline.jobs.expiry import ExpirySummary as ExpirySummary
    from headrace.pipeline.jobs.expiry import purge_expired as purge_expired
    from headrace.pipeline.jobs.tag_backfill import TagBackfillSummary as TagBackfillSummary
    from headrace.pipeline.jobs.tag_backfill import backfill_tag as backfill_tag
    from headrace.pipeline.logs.planning import Plan as Plan
    from headrace.pipeline.logs.planning import Selection as Selection
    from headrace.pipeline.logs.planning import topics_of as topics_of
    from headrace.pipeline.replicating.losses import accept_loss as accept_loss
    from headrace.pipeline.replicating.replication import Replication as Replication
    from headrace.pipeline.replicating.replication import Summary as Summary
    from headrace.pipeline.replicating.watching import BatchReport as BatchReport
    from headrace.pipeline.replicating.watching import ReplicationWatcher as ReplicationWatcher
    from headrace.pipeline.spark.packaging import package as package
    from headrace.pipeline.spark.places import Places as Places
    from headrace.pipeline.spark.session import spark_session as spark_session
    from headrace.pipeline.tables.frames import journal_frame as journal_frame
    from headrace.pipeline.tables.frames import meta_frame as meta_frame
    from headrace.pipeline.tables.frames import pointer_frame as pointer_frame
    from headrace.pipeline.tables.sql_views import query as query
    from headrace.pipeline.tables.states import state_as_of as state_as_of
    from headrace.pipeline.topics.topic_frames import compact as compact
    from headrace.pipeline.topics.topic_frames import topic_frame as topic_frame
    from headrace.pipeline.topics.topic_writes import Appended as Appended
    from headrace.pipeline.topics.topic_writes import append_frame as append_frame
    from headrace.pipeline.topics.typed_frames import typed as typed

_HOMES = {
    "Appended": "topics.topic_writes",
    "AuditReport": "jobs.audit",
    "BackfillSummary": "jobs.backfill",
    "BatchReport": "replicating.watching",
    "ExpirySummary": "jobs.expiry",
    "Finding": "comparing.findings",
    "FindingKind": "comparing.findings",
    "Places": "spark.places",
    "Plan": "logs.planning",
    "Replication": "replicating.replication",
    "ReplicationWatcher": "replicating.watching",
    "Selection": "logs.planning",
    "Summary": "replicating.replication",
    "TagBackfillSummary": "jobs.tag_backfill",
    "accept_loss": "replicating.losses",
    "append_frame": "topics.topic_writes",
    "audit": "jobs.audit",
    "backfill": "jobs.backfill",
    "backfill_tag": "jobs.tag_backfill",
    "compact": "topics.topic_frames",
    "journal_frame": "tables.frames",
    "meta_frame": "tables.frames",
    "package": "spark.packaging",
    "pointer_frame": "tables.frames",
    "purge_expired": "jobs.expiry",
    "query": "tables.sql_views",
    "spark_session": "spark.session",
    "state_as_of": "tables.states",
    "topic_frame": "topics.topic_frames",
    "topics_of": "logs.planning",
    "typed": "topics.typed_frames",
}

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


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace.pipeline' has no attribute {name!r}")
    return getattr(import_module(f"headrace.pipeline.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
