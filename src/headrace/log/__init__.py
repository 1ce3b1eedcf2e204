"""The log: topics of partitioned, ordered, append-only records, in SQLite on one machine or in Kafka.

Promises: one port (`Log`), the same behaviour from every backend (`headrace.testing.conformance.log` is the suite);
an append that returned is durable; readers see committed records only, in order; owners of a transactional id
fence their predecessors. Backends are found by the scheme of their address, those of other packages included.
"""

from headrace.log.ports import Admin, Groups, Listener, Log, Member, Retention, StartAt, TransactionalProducer, open_log
from headrace.log.tokens import check_token, wait_for_token
from headrace.log.topics import ensure_topic
from headrace.log.transactions import transaction

__all__ = [
    "Admin",
    "Groups",
    "Listener",
    "Log",
    "Member",
    "Retention",
    "StartAt",
    "TransactionalProducer",
    "check_token",
    "ensure_topic",
    "open_log",
    "transaction",
    "wait_for_token",
]
