"""Blocking registries and serdes, for confluent-kafka's producer and consumer, scripts and Spark workers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from headrace.config import LogSettings, RegistrySettings
from headrace.errors import BadArgument
from headrace.log import Log, open_log
from headrace.runtime import LoopThread
from headrace.serde.framing import Decoder, Encoder, Serde
from headrace.serde.ports import Registry
from headrace.serde.registries import open_registry
from headrace.serde.subjects import subject_of

__all__ = ["BlockingRegistry", "KafkaDeserializer", "KafkaSerializer"]

T = TypeVar("T")


class BlockingRegistry:
    """A registry, and the log that may hold it, on an event loop in a thread of their own.

    with BlockingRegistry("https://registry:8081") as registry: …
    with BlockingRegistry("log:headrace-schemas", log_address="kafka://host:9092") as registry: …
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        log_address: str | None = None,
        settings: RegistrySettings | None = None,
        log_settings: LogSettings | None = None,
    ) -> None:
        self._loop = LoopThread("headrace-registry", what="this registry")
        self._log: Log | None = None
        self._is_closed = False
        try:
            if log_address is not None:
                self._log = self.run(open_log(log_address, settings=log_settings))
            self.registry: Registry = self.run(open_registry(address, log=self._log, settings=settings))
        except BaseException:
            self.close()
            raise

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the registry and wait for it. Raises Closed; BadArgument in the registry's own thread."""
        return self._loop.run(coroutine)

    def close(self) -> None:
        """Close registry and log, and end the thread. Raises BadArgument in that thread."""
        if self._is_closed:
            return
        self._loop.check_thread()
        self._is_closed = True
        self.run(self._close())
        self._loop.close()

    async def _close(self) -> None:
        if hasattr(self, "registry"):
            await self.registry.close()
        if self._log is not None:
            await self._log.close()
        await asyncio.get_running_loop().shutdown_default_executor()

    def __enter__(self) -> BlockingRegistry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SerializationContext(Protocol):
    """The context that confluent-kafka passes to a serializer: the topic, and `key` or `value`."""

    topic: str
    field: str


class KafkaSerializer(Generic[T]):
    """For `key.serializer` and `value.serializer` of confluent-kafka's SerializingProducer.

    Schemas are registered under `<topic>-value` and `<topic>-key`, or under `subject`. With `auto_register=False` they
    must be registered already.
    """

    def __init__(
        self,
        registry: BlockingRegistry,
        kind: type[T] | Any,  # noqa: ANN401
        *,
        subject: str | None = None,
        auto_register: bool = True,
    ) -> None:
        self._registry = registry
        self._auto_register = auto_register
        self._kind = kind
        self._subject = subject
        self._encoders: dict[str, Encoder[T]] = {}

    def __call__(self, value: T | None, context: SerializationContext | None = None) -> bytes | None:
        """Return the framed bytes; None for None."""
        if value is None:
            return None
        subject = self._subject or _subject(context)
        encoder = self._encoders.get(subject)
        if encoder is None:
            serde: Serde[T] = Serde(self._registry.registry, subject, self._kind, auto_register=self._auto_register)
            encoder = self._encoders[subject] = self._registry.run(serde.encoder())
        return encoder(value)


class KafkaDeserializer(Generic[T]):
    """For `key.deserializer` and `value.deserializer` of confluent-kafka's DeserializingConsumer.

    `kinds` is one class for all records, several classes chosen by name, or none for generic records.
    """

    def __init__(self, registry: BlockingRegistry, *kinds: Any) -> None:  # noqa: ANN401
        self._registry = registry
        self._decoder: Decoder[T] = Decoder(registry.registry, kinds, is_strict=len(kinds) == 1)

    def __call__(self, data: bytes | None, context: SerializationContext | None = None) -> T | None:
        """Return the value; None for None."""
        if data is None or self._decoder.has_loaded(data):
            return self._decoder(data)
        return self._registry.run(self._decoder.decode(data))


def _subject(context: SerializationContext | None) -> str:
    if context is None or not context.topic:
        raise BadArgument("context", context, "without a topic the serializer needs subject=…")
    parts: Mapping[str, Any] = {"key": "key", "value": "value"}
    return subject_of(context.topic, parts.get(str(context.field), "value"))
