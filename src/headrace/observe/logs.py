"""Structured log events over the standard library's logging.

A library must not decide where an application's logs go, so every logger here carries its own processors and
leaves structlog's global configuration alone. Without `configure` an event reaches the application's handlers
as a readable line, its fields under `record.headrace`; without handlers it goes nowhere.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Literal, TextIO, cast

import structlog
from structlog.typing import EventDict, WrappedLogger

from headrace.config import redact
from headrace.errors import BadArgument

__all__ = ["LogFormat", "Logger", "configure", "get_logger"]

Logger = structlog.stdlib.BoundLogger
LogFormat = Literal["console", "json"]

_FIELDS = "headrace"
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

logging.getLogger("headrace").addHandler(logging.NullHandler())


def get_logger(name: str, **fields: object) -> Logger:
    """Return a logger whose events carry `fields`; `log.info("topic created", topic="a", partitions=3)`."""
    logger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=_PROCESSORS,
        wrapper_class=Logger,
        context_class=dict,
        cache_logger_on_first_use=True,
    )
    return cast("Logger", logger.bind(**fields) if fields else logger)


def configure(level: str = "INFO", format: LogFormat = "console", *, stream: TextIO | None = None) -> None:  # noqa: A002
    """Send all logs of the process to `stream` (stderr). For programs; the library never calls it.

    Calling it again replaces the handler that it set up before and touches no other handlers.
    """
    if level.upper() not in _LEVELS:
        raise BadArgument("level", level, f"it must be one of {', '.join(_LEVELS)}")
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(_EventFormatter(_renderer(format, handler.stream)))
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())


def _hide_secrets(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    return {key: redact(key, value) for key, value in event.items()}


def _to_record(logger: WrappedLogger, method: str, event: EventDict) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Turn the event into the arguments of a standard logger, traceback left to its formatters."""
    kwargs = {key: event.pop(key) for key in ("exc_info", "stack_info", "stacklevel") if key in event}
    message = event.pop("event", "")
    pairs = " ".join(f"{key}={value!r}" for key, value in event.items())
    line = f"{message} {pairs}" if pairs else str(message)
    # Under one name: a field called "name" or "args" would collide with the record's own.
    fields = {"event": message, **event}
    return ("%s", line), {"extra": {_FIELDS: fields}, **kwargs}


_PROCESSORS: list[Any] = [
    structlog.stdlib.filter_by_level,
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.PositionalArgumentsFormatter(),
    _hide_secrets,
    _to_record,
]


class _Handler(logging.StreamHandler[TextIO]):
    """A class of its own, so that a second `configure` finds the handler to replace."""


class _EventFormatter(logging.Formatter):
    """Gives log records of every library the same shape: timestamp, level, logger, event, fields."""

    def __init__(self, renderer: structlog.typing.Processor) -> None:
        super().__init__()
        self._renderer = renderer

    def format(self, record: logging.LogRecord) -> str:
        event: MutableMapping[str, Any] = {
            "timestamp": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{record.msecs:03.0f}",
            "level": record.levelname.lower(),
            "logger": record.name,
            **getattr(record, _FIELDS, {"event": record.getMessage()}),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            event["stack"] = self.formatStack(record.stack_info)
        return str(self._renderer(None, record.levelname.lower(), event))


def _renderer(format: LogFormat, stream: TextIO) -> structlog.typing.Processor:  # noqa: A002
    if format == "json":
        return structlog.processors.JSONRenderer(default=str)
    if format == "console":
        return structlog.dev.ConsoleRenderer(colors=stream.isatty())
    raise BadArgument("format", format, "it must be console or json")
