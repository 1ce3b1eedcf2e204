"""Records that no client of Python can write: the driver's own library takes names of headers that are no text."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import confluent_kafka

_TOPIC, _PARTITION, _VALUE, _KEY, _HEADER, _END = 1, 3, 4, 5, 9, 0
_PRODUCER = 0
_SIZE = ctypes.c_size_t


def _library() -> ctypes.CDLL:
    (path,) = (Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs").glob("librdkafka-*.so.1")
    library = ctypes.CDLL(str(path))
    library.rd_kafka_conf_new.restype = ctypes.c_void_p
    library.rd_kafka_new.restype = ctypes.c_void_p
    return library


def produce(bootstrap: str, topic: str, value: bytes, headers: Sequence[tuple[bytes, bytes]], *, key: bytes) -> None:
    """Write a record to the first partition, and wait until it is there."""
    library, problem = _library(), ctypes.create_string_buffer(512)
    config = ctypes.c_void_p(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(config, b"bootstrap.servers", bootstrap.encode(), problem, _SIZE(512))
    client = ctypes.c_void_p(library.rd_kafka_new(_PRODUCER, config, problem, _SIZE(512)))
    try:
        arguments: list[object] = [_TOPIC, topic.encode(), _PARTITION, 0]
        arguments += [_VALUE, value, _SIZE(len(value)), _KEY, key, _SIZE(len(key))]
        for name, content in headers:
            arguments += [_HEADER, name, content, ctypes.c_ssize_t(len(content))]
        assert library.rd_kafka_producev(client, *arguments, _END) == 0
        assert library.rd_kafka_flush(client, 20_000) == 0
    finally:
        library.rd_kafka_destroy(client)
