"""The registries: in memory, in a folder, in the log itself, and any that speaks Confluent's protocol.

Promises: one port (`headrace.serde.Registry`), the same behaviour from each; `open_registry` finds them by address.
"""

from headrace.serde.registries.backends import open_registry
from headrace.serde.registries.entries import check_subject

__all__ = ["check_subject", "open_registry"]
