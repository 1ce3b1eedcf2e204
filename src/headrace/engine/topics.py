"""The topics of an engine: made, checked, and claimed so that nobody else writes to its journal."""

from __future__ import annotations

from typing import Any, TypeVar

from headrace.cluster import OwnedPartition
from headrace.engine.handling import CommandHandling, RecordLimits
from headrace.engine.models import Engine
from headrace.engine.partition import EnginePartition
from headrace.engine.records import AggregateRecord, AggregateValues
from headrace.errors import WrongEngineTopic
from headrace.journal import claim_for_engine, journal_config
from headrace.log import Log, ensure_topic
from headrace.model import TopicPartition
from headrace.runtime import SYSTEM_CLOCK, Clock
from headrace.serde import Registry
from headrace.state import StatePartition, StateSpec
from headrace.store import SharedSettings

__all__ = ["ensure_topics", "open_partition", "owned_partition", "state_spec"]

S = TypeVar("S")
