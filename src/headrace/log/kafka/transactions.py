"""Transactions: one producer that owns a transactional id."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import confluent_kafka
from confluent_kafka import KafkaException, Producer

from headrace.errors import BadArgument, Closed, Fenced, NotOwner, TransactionFailed, TransactionMisused
from headrace.log.kafka.appending import produce
from headrace.log.kafka.catalogue import Catalogue
from headrace.log.kafka.clients import LOGGER
from headrace.log.kafka.cluster import Cluster
from headrace.log.kafka.faults import FENCED, NOT_OWNER, error_in
from headrace.log.kafka.members import KafkaMember
from headrace.log.kafka.producers import Placing, batch_bytes_of, refusal_of
from headrace.log.kafka.threads import Threads
from headrace.log.kafka.tries import Try
from headrace.log.metrics import APPENDED, TRANSACTIONS
from headrace.log.ports import Member
from headrace.model import NewRecord, Position, Topic, TopicPartition

__all__ = ["KafkaTransactional", "take_id"]

T = TypeVar("T")
