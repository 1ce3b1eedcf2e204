"""The outbox: an application publishes in its own SQL transaction, and a relay sends what was committed.

Promises: no message of a committed transaction is lost and none of a rolled-back one is sent, on PostgreSQL,
MySQL/MariaDB and SQLite; messages of one key arrive in the order of their ids; the log may be away for as long as the
table has room. At least once by default, with an event id in every record; exactly once on request.
Does not promise: an order between keys, nor between transactions that change the same key without a lock between them.

Needs the extra `outbox`, and the database's own (`postgres`, `mysql`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy_names import lazy_names

if TYPE_CHECKING:
    from headrace.config import OutboxSettings as OutboxSettings
    from headrace.outbox.avro import AvroDecoder as AvroDecoder
    from headrace.outbox.avro import AvroSerializer as AvroSerializer
    from headrace.outbox.dead import DeadMessage as DeadMessage
    from headrace.outbox.dead import dead_messages as dead_messages
    from headrace.outbox.dead import purge as purge
    from headrace.outbox.dead import replay as replay
    from headrace.outbox.engines import engine_for as engine_for
    from headrace.outbox.handler_transactions import HandlerTransaction as HandlerTransaction
    from headrace.outbox.handler_transactions import check_blocking as check_blocking
    from headrace.outbox.handler_transactions import check_done as check_done
    from headrace.outbox.handler_transactions import handler_name as handler_name
    from headrace.outbox.inbox import Handling as Handling
    from headrace.outbox.inbox import Inbox as Inbox
    from headrace.outbox.inbox import PoisonEvent as PoisonEvent
    from headrace.outbox.messages import EVENT_ID as EVENT_ID
    from headrace.outbox.messages import Message as Message
    from headrace.outbox.messages import event_id_of as event_id_of
    from headrace.outbox.model_changes import ModelChange as ModelChange
    from headrace.outbox.model_changes import publish_changes as publish_changes
    from headrace.outbox.payloads import BytesSerializer as BytesSerializer
    from headrace.outbox.payloads import JsonDecoder as JsonDecoder
    from headrace.outbox.payloads import JsonSerializer as JsonSerializer
    from headrace.outbox.ports import MessageDecoder as MessageDecoder
    from headrace.outbox.ports import Serializer as Serializer
    from headrace.outbox.producers import AsyncProducer as AsyncProducer
    from headrace.outbox.producers import Outbox as Outbox
    from headrace.outbox.producers import Producer as Producer
    from headrace.outbox.relay import BackgroundRelay as BackgroundRelay
    from headrace.outbox.relay import Relay as Relay
    from headrace.outbox.relay import opened_relay as opened_relay
    from headrace.outbox.rows import SentMessage as SentMessage
    from headrace.outbox.rows import forget_sent as forget_sent
    from headrace.outbox.rows import sent_messages as sent_messages
    from headrace.outbox.schema import migrate as migrate
    from headrace.outbox.schema import schema_version as schema_version
    from headrace.outbox.stats import LaneStatus as LaneStatus
    from headrace.outbox.stats import pending as pending
    from headrace.outbox.stats import status as status

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "headrace.config": "OutboxSettings",
        "headrace.outbox.avro": "AvroDecoder AvroSerializer",
        "headrace.outbox.dead": "DeadMessage dead_messages purge replay",
        "headrace.outbox.engines": "engine_for",
        "headrace.outbox.handler_transactions": "HandlerTransaction check_blocking check_done handler_name",
        "headrace.outbox.inbox": "Handling Inbox PoisonEvent",
        "headrace.outbox.messages": "EVENT_ID Message event_id_of",
        "headrace.outbox.model_changes": "ModelChange publish_changes",
        "headrace.outbox.payloads": "BytesSerializer JsonDecoder JsonSerializer",
        "headrace.outbox.ports": "MessageDecoder Serializer",
        "headrace.outbox.producers": "AsyncProducer Outbox Producer",
        "headrace.outbox.relay": "BackgroundRelay Relay opened_relay",
        "headrace.outbox.rows": "SentMessage forget_sent sent_messages",
        "headrace.outbox.schema": "migrate schema_version",
        "headrace.outbox.stats": "LaneStatus pending status",
    },
    extras={"sqlalchemy": "outbox"},
)
