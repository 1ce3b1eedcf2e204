"""The events that benches write and read, and what several benches do with them."""

from benchmarks.workloads.events import KEYS, VALUE_BYTES, Event, events

__all__ = ["KEYS", "VALUE_BYTES", "Event", "events"]
