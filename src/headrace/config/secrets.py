"""Secrets, which are never shown: settings with secret names, and passwords inside addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["HIDDEN", "looks_secret", "redact"]

HIDDEN = "***"

_SECRET_NAME = re.compile(r"passw|secret|token|credential|api_?key|private_?key|sasl|jaas|ssl[._]key", re.IGNORECASE)
# Kafka's public sasl and ssl properties that are worth seeing when a connection fails.
_PUBLIC_NAMES = frozenset({"sasl.mechanism", "sasl.mechanisms", "ssl.key.location"})
_PASSWORD_IN_ADDRESS = re.compile(r"://[^/@\s]+@")


def looks_secret(name: str) -> bool:
    """Return True if a setting or log field of that name holds a secret."""
    return name.lower() not in _PUBLIC_NAMES and _SECRET_NAME.search(name) is not None


def redact(name: str, value: Any) -> Any:  # noqa: ANN401 - it takes and returns whatever was set
    """Return the value as it may be shown: secrets hidden, at any depth, and user:password cut from addresses."""
    if value is not None and looks_secret(name):
        return HIDDEN
    if isinstance(value, Mapping):
        return {key: redact(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redact(name, inner) for inner in value]
    if isinstance(value, str):
        return _PASSWORD_IN_ADDRESS.sub(f"://{HIDDEN}@", value)
    return value
