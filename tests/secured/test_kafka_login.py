"""Kafka with SASL and TLS, by the plain client."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.secured.authority import Authority
from tests.secured.servers import Secured

from headrace.config import KafkaLogSettings
from headrace.errors import BadArgument, Forbidden, HeadraceError, Unreachable
from headrace.log.kafka.log import KafkaLog
from headrace.model import NewRecord, TopicConfig, TopicPartition

pytestmark = pytest.mark.servers

QUICK_S = 8.0


async def opened_error(address: str, client: dict[str, str]) -> HeadraceError:
    """Open a log that must not open; it is refused long before the time is up."""
    started = time.monotonic()
    with pytest.raises(HeadraceError) as failed:
        await KafkaLog.open(address, KafkaLogSettings(client=client))
    assert time.monotonic() - started < QUICK_S
    return failed.value


def says_no_secret(error: BaseException, *secrets: str) -> bool:
    """Look into the whole chain of errors."""
    texts = []
    each: BaseException | None = error
    while each is not None:
        texts += [str(each), repr(each), repr(vars(each))]
        each = each.__cause__
    return not any(secret in text for secret in secrets for text in texts)


async def works(address: str, client: dict[str, str], topic: str) -> bool:
    """Append a record and read it back."""
    log = await KafkaLog.open(address, KafkaLogSettings(client=client))
    try:
        await log.admin.create(topic, partitions=1, config=TopicConfig())
        await log.append([NewRecord(topic, b"k", b"v")])
        return [r.value async for batch in log.read(TopicPartition(topic, 0), 0, 1) for r in batch.records] == [b"v"]
    finally:
        await log.close()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
async def test_a_user_logs_in(secured: Secured, topic: str, mechanism: str) -> None:
    """K2: properties of the settings log in, by SCRAM and PLAIN over TLS, whatever signs the password has."""
    password = secured.plain if mechanism == "PLAIN" else secured.scram
    assert await works(secured.log, secured.kafka_client(sasl_mechanism=mechanism, sasl_password=password), topic)


async def test_a_certificate_logs_in(secured: Secured, topic: str) -> None:
    """K2: mutual TLS, the key's own password included."""
    certificate, key = secured.client
    client = {
        "security.protocol": "ssl",
        "ssl.ca.location": str(secured.authority.ca),
        "ssl.certificate.location": str(certificate),
        "ssl.key.location": str(key),
        "ssl.key.password": secured.key_password,
    }
    assert await works(f"kafka://{secured.mutual}", client, topic)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
async def test_a_wrong_password_is_told_at_once(secured: Secured, mechanism: str) -> None:
    """K2: Forbidden, which is not retried, with the broker's reason, without the password."""
    error = await opened_error(
        secured.log, secured.kafka_client(sasl_mechanism=mechanism, sasl_password="wrong-c0ffee")
    )
    assert isinstance(error, Forbidden)
    assert "Authentication failed" in str(error)
    assert secured.log in str(error)
    assert says_no_secret(error, "c0ffee", *secured.tokens)


async def test_a_server_we_do_not_trust_is_told_at_once(secured: Secured, tmp_path: Path) -> None:
    """K2: a certificate of another authority: the error names the property to look at."""
    stranger = Authority(tmp_path, "stranger")
    error = await opened_error(secured.log, secured.kafka_client(ssl_ca_location=str(stranger.ca)))
    assert isinstance(error, Forbidden)
    assert "ssl.ca.location" in str(error)
    assert says_no_secret(error, *secured.tokens)


async def test_a_property_that_is_none_is_refused(secured: Secured) -> None:
    """K2: a file that is not there, a name nobody knows: BadArgument, and of the other properties only names."""
    for wrong in ({"ssl_ca_location": "/no/such/file.pem"}, {"sasl_no_such": "x"}, {"security_protocol": "tls"}):
        error = await opened_error(secured.log, secured.kafka_client(**wrong))
        assert isinstance(error, BadArgument)
        assert next(iter(wrong)).replace("_", ".") in str(error)
        assert says_no_secret(error, *secured.tokens)


async def test_nobody_there_is_told_with_the_reason() -> None:
    """K2: no refusal: what the connection ran into is in the error."""
    with pytest.raises(Unreachable, match="Connection refused"):
        await KafkaLog.open("kafka://127.0.0.1:9", KafkaLogSettings(request_timeout_s=1))


async def test_an_address_with_a_password_is_not_repeated() -> None:
    """K2: credentials belong into the properties; an address that has some is refused without showing them."""
    with pytest.raises(BadArgument) as failed:
        await KafkaLog.open("kafka://app:c0ffee@host:9092", KafkaLogSettings())
    assert says_no_secret(failed.value, "c0ffee")
