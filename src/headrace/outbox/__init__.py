"""The outbox: an application publishes in its own SQL transaction, and a relay sends what was committed.

Promises: no message of a committed transaction is lost and none of a rolled-back one is sent, on PostgreSQL,
MySQL/MariaDB and SQLite; messages of one key arrive in the order of their ids; the log may be away for as long as the
table has room. At least once by default, with an event id in every record; exactly once on request.
Does not promise: an order between keys, nor between transactions that change the same key without a lock between them.

Needs the extra `outbox`, and the database's own (`postgres`, `mysql`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from headrace.errors import MissingExtra

if TYPE_CHECKING:
    from headrace.outbox.avro import AvroDecoder as AvroDecoder
    from headrace.outbox.avro import AvroSerializer as AvroSerializer
    from headrace.outbox.dead import DeadMessage as DeadMessage
    from headrace.outbox.dead import dead_messages as dead_messages
    from headrace.outbox.dead import purge as purge
    from headrace.outbox.dead import replay as replay
    from headrace.outbox.headers import EVENT_ID as EVENT_ID
    from headrace.outbox.headers import event_id_of as event_id_of
    from headrace.outbox.inbox import Inbox as Inbox
    from headrace.outbox.inbox_failures import Handling as Handling
    from headrace.outbox.inbox_failures import PoisonEvent as PoisonEvent
    from headrace.outbox.messages import Message as Message
    from headrace.outbox.migrating import migrate as migrate
    from headrace.outbox.migrating import schema_version as schema_version
    from headrace.outbox.model_changes import ModelChange as ModelChange
    from headrace.outbox.model_changes import publish_changes as publish_changes
    from headrace.outbox.outbox import Outbox as Outbox
    from headrace.outbox.ports import Decoder as Decoder
    from headrace.outbox.ports import Serializer as Serializer
    from headrace.outbox.producers import AsyncProducer as AsyncProducer
    from headrace.outbox.producers import Producer as Producer
    from headrace.outbox.relay import Relay as Relay
    from headrace.outbox.running import BackgroundRelay as BackgroundRelay
    from headrace.outbox.running import opened_relay as opened_relay
    from headrace.outbox.sent import SentMessage as SentMessage
    from headrace.outbox.sent import forget_sent as forget_sent
    from headrace.outbox.sent import sent_messages as sent_messages
    from headrace.outbox.serializers import BytesSerializer as BytesSerializer
    from headrace.outbox.serializers import JsonDecoder as JsonDecoder
    from headrace.outbox.serializers import JsonSerializer as JsonSerializer
    from headrace.outbox.settings import OutboxSettings as OutboxSettings
    from headrace.outbox.stats import pending as pending
    from headrace.outbox.stats import status as status

_HOMES = {
    "AsyncProducer": "producers",
    "AvroDecoder": "avro",
    "AvroSerializer": "avro",
    "BackgroundRelay": "running",
    "BytesSerializer": "serializers",
    "DeadMessage": "dead",
    "Decoder": "ports",
    "EVENT_ID": "headers",
    "Handling": "inbox_failures",
    "Inbox": "inbox",
    "JsonDecoder": "serializers",
    "JsonSerializer": "serializers",
    "Message": "messages",
    "ModelChange": "model_changes",
    "Outbox": "outbox",
    "OutboxSettings": "settings",
    "PoisonEvent": "inbox_failures",
    "Producer": "producers",
    "Relay": "relay",
    "SentMessage": "sent",
    "Serializer": "ports",
    "dead_messages": "dead",
    "event_id_of": "headers",
    "forget_sent": "sent",
    "migrate": "migrating",
    "opened_relay": "running",
    "pending": "stats",
    "publish_changes": "model_changes",
    "purge": "dead",
    "replay": "dead",
    "schema_version": "migrating",
    "sent_messages": "sent",
    "status": "stats",
}

__all__ = [
    "EVENT_ID",
    "AsyncProducer",
    "AvroDecoder",
    "AvroSerializer",
    "BackgroundRelay",
    "BytesSerializer",
    "DeadMessage",
    "Decoder",
    "Handling",
    "Inbox",
    "JsonDecoder",
    "JsonSerializer",
    "Message",
    "ModelChange",
    "Outbox",
    "OutboxSettings",
    "PoisonEvent",
    "Producer",
    "Relay",
    "SentMessage",
    "Serializer",
    "dead_messages",
    "event_id_of",
    "forget_sent",
    "migrate",
    "opened_relay",
    "pending",
    "publish_changes",
    "purge",
    "replay",
    "schema_version",
    "sent_messages",
    "status",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace.outbox' has no attribute {name!r}")
    try:
        module = import_module(f"headrace.outbox.{_HOMES[name]}")
    except ModuleNotFoundError as missing:
        if missing.name != "sqlalchemy":
            raise
        raise MissingExtra("sqlalchemy", "outbox") from missing
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
