"""confluent-kafka's registry client: made from our settings, its errors turned into ours."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from headrace.config import HttpRegistrySettings
from headrace.errors import (
    BadSchema,
    Forbidden,
    HeadraceError,
    IncompatibleSchema,
    MissingExtra,
    OperationFailed,
    TimedOut,
    Unreachable,
)

__all__ = ["is_missing", "new_client", "raised_as_ours"]


class _Missing(Exception):
    """The server says 404; `is_missing` says what that means."""


def new_client(url: str, settings: HttpRegistrySettings) -> Any:  # noqa: ANN401
    """Return a client for the registry at `url`. Raises MissingExtra."""
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as error:
        raise MissingExtra(str(error.name or "confluent_kafka"), "registry") from error
    return SchemaRegistryClient({"url": url, **_properties(settings)})


@contextlib.contextmanager
def raised_as_ours(operation: str, url: str, timeout_s: float) -> Iterator[None]:
    """Turn what the client raises into errors of ours."""
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    try:
        yield
    except SchemaRegistryError as error:
        raise _refusal(error, operation) from error
    except _transport_errors() as error:
        if "Timeout" in type(error).__name__:
            raise TimedOut(operation, timeout_s, outcome_known=False) from error
        raise Unreachable(url, str(error) or type(error).__name__, outcome_known=False) from error


@contextlib.contextmanager
def is_missing(meaning: HeadraceError) -> Iterator[None]:
    """Raise `meaning` where the server says that there is no such thing."""
    try:
        yield
    except _Missing as error:
        raise meaning from error


def _refusal(error: Any, operation: str) -> Exception:  # noqa: ANN401
    message = str(error.error_message)
    match error.http_status_code:
        case 404:
            return _Missing(message)
        case 401 | 403:
            return Forbidden(operation, f"the registry says {error.http_status_code}: {message}")
        case 409:
            return IncompatibleSchema(operation, "the server's level", "?", 0, "the server refuses it", (message,))
        case 422:
            return BadSchema("the top", message)
    return OperationFailed(operation, str(error), outcome_known=False)


def _properties(settings: HttpRegistrySettings) -> dict[str, Any]:
    found: dict[str, Any] = {
        "ssl.ca.location": settings.ca_location,
        "ssl.certificate.location": settings.certificate_location,
        "ssl.key.location": settings.key_location,
        "ssl.key.password": settings.key_password and settings.key_password.get_secret_value(),
        "timeout": settings.timeout_s,
        "max.retries": settings.retries,
    }
    if settings.username is not None:
        password = settings.password.get_secret_value() if settings.password else ""
        found["basic.auth.user.info"] = f"{settings.username}:{password}"
    return {name: value for name, value in found.items() if value is not None}


def _transport_errors() -> tuple[type[Exception], ...]:
    """The client uses httpx2 where it is installed, else httpx."""
    found = []
    for name in ("httpx2", "httpx"):
        with contextlib.suppress(ImportError):
            found.append(importlib.import_module(name).TransportError)
    return tuple(found)
