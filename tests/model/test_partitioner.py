"""The partitioner agrees with Kafka's own."""

from __future__ import annotations

import confluent_kafka
from hypothesis import given
from hypothesis import strategies as st

from headrace.model import murmur2, partition_of


def test_known_values() -> None:
    """C1: the vectors of Kafka's own tests, and the one of the behaviours."""
    vectors = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    for key, signed in vectors.items():
        assert murmur2(key) == signed & 0xFFFFFFFF
    assert partition_of(b"test-value-for-partitioner", 4) == 3


@given(st.binary(max_size=100), st.integers(1, 1000))
def test_agrees_with_librdkafka(key: bytes, partitions: int) -> None:
    """C1: any key, any number of partitions: the place a plain Kafka producer would choose."""
    assert partition_of(key, partitions) == confluent_kafka.murmur2(key, partitions)
