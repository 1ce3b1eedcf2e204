"""Backends of the registry: in memory, in a folder, in the log, and on a server with Confluent's protocol.

Promises: all implement `headrace.serde.Registry` with the same behaviour; `open_registry` opens them by address.
"""

from headrace.serde.registries.backends import open_registry

__all__ = ["open_registry"]
