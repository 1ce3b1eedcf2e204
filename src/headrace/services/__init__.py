"""Real servers from packages, for development and tests, on loopback only.

Promises: what `start` returns answers clients; an attached service dies with its starter, whatever kills it;
files fetched are the pinned ones, by SHA-256; servers are stopped by their own pids, and no other process is.
Does not promise: anything a production deployment needs, such as safety of the data or of the network.
"""

from headrace.services.detached import Detached
from headrace.services.fetch import spark_jars
from headrace.services.java import find_java
from headrace.services.layouts import StartOptions
from headrace.services.nodes import ServerNode, follow
from headrace.services.packages import cache_folder
from headrace.services.running_service import VARIABLES, RunningService, environment_of, hold, stop_signals
from headrace.services.starter import NAMES, start, start_with
from headrace.services.watcher import Quiet, Terminal, Watcher

__all__ = [
    "NAMES",
    "VARIABLES",
    "Detached",
    "Quiet",
    "RunningService",
    "ServerNode",
    "StartOptions",
    "Terminal",
    "Watcher",
    "cache_folder",
    "environment_of",
    "find_java",
    "follow",
    "hold",
    "spark_jars",
    "start",
    "start_with",
    "stop_signals",
]
