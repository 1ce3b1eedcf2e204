"""Properties of librdkafka as Kafka's Java client takes them, and what settings show of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.secured.authority import Authority

from headrace.config import HeadraceSettings
from headrace.errors import BadArgument
from headrace.pipeline import Endpoints
from headrace.pipeline.spark.kafka_properties import java_properties


def test_a_property_without_a_like_is_refused() -> None:
    """K2: a job must not run less protected than it was told to, nor fail in an executor."""
    for name, value in (
        ("ssl.crl.location", "x.pem"),
        ("sasl.oauthbearer.config", "x"),
        ("sasl.mechanism", "GSSAPI"),
        ("enable.ssl.certificate.verification", "false"),
    ):
        with pytest.raises(BadArgument, match="Spark's Kafka client"):
            java_properties({name: value})


@pytest.mark.parametrize("form", [serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL])
@pytest.mark.parametrize("password", [None, "c0ffee"])
def test_any_key_becomes_one_that_java_reads(form: Any, password: str | None) -> None:
    """K2: old forms and encrypted ones go on as plain PKCS#8, and the password stays here."""
    key = ec.generate_private_key(ec.SECP256R1())
    encryption = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, form, encryption).decode()
    found = java_properties({"ssl.key.pem": pem, **({"ssl.key.password": password} if password else {})})
    plain = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    assert found == {"ssl.keystore.key": plain, "ssl.keystore.type": "PEM"}


def test_a_key_that_does_not_open_is_told_without_showing_it() -> None:
    """K2: a wrong password, none at all, something that is no key."""
    key = ec.generate_private_key(ec.SECP256R1())
    form, right = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"right")
    pem = key.private_bytes(serialization.Encoding.PEM, form, right).decode()
    for client in ({"ssl.key.pem": pem, "ssl.key.password": "c0ffee"}, {"ssl.key.pem": pem}, {"ssl.key.pem": "c0ffee"}):
        with pytest.raises(BadArgument, match=r"ssl\.key\.password") as failed:
            java_properties(client)
        assert "c0ffee" not in str(failed.value)
        assert pem.splitlines()[1] not in str(failed.value)


def test_files_that_can_not_be_read_are_named(tmp_path: Path) -> None:
    """K2: a file that is not there, a folder: the error names the property."""
    for path in (tmp_path / "none.pem", tmp_path):
        with pytest.raises(BadArgument, match=r"ssl\.ca\.location"):
            java_properties({"ssl.ca.location": str(path)})


def test_tuning_of_librdkafka_is_left_out() -> None:
    """K2: what has no meaning for the other client does not reach it."""
    assert java_properties({"queued.min.messages": "5", "client.id": "shop"}) == {"client.id": "shop"}
    assert java_properties({"ssl.ca.location": "probe", "enable.ssl.certificate.verification": "true"}) == {}


def test_files_travel_by_content(tmp_path: Path) -> None:
    """K2: workers need no files; a chain of certificates, which librdkafka takes from a file only, keeps its name."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("app")
    client = {
        "ssl.ca.location": str(authority.ca),
        "ssl.certificate.location": str(certificate),
        "ssl.key.location": str(key),
    }
    store = {"cassandra": {"tls": True, "ca_location": str(authority.ca), "password": "c0ffee"}}
    settings = {"log": {"kafka": {"client": client}}, "store": store}
    endpoints = Endpoints.unpack(Endpoints.of("embedded:x", settings=HeadraceSettings.model_validate(settings)).pack())
    assert endpoints.settings_of_log().kafka.client == {
        "ssl.ca.pem": authority.ca.read_text(),
        "ssl.certificate.pem": certificate.read_text(),
        "ssl.key.pem": key.read_text(),
    }
    assert endpoints.settings_of_store().cassandra.ca_pem == authority.ca.read_text()
    assert repr(endpoints) == f"Endpoints('embedded:{Path.cwd() / 'x'}', 'embedded:{Path.cwd() / 'x'}')"
    certificate.write_text(certificate.read_text() + authority.ca.read_text())
    endpoints = Endpoints.of("embedded:x", settings=HeadraceSettings.model_validate(settings))
    assert endpoints.settings_of_log().kafka.client["ssl.certificate.location"] == str(certificate)
    assert java_properties(client)["ssl.keystore.certificate.chain"] == certificate.read_text()


def test_settings_show_no_secret() -> None:
    """K2: neither their repr nor their description."""
    client = {"sasl.password": "c0ffee", "ssl.key.password": "c0ffee", "ssl.key.pem": "c0ffee"}
    cassandra = {"password": "c0ffee", "key_password": "c0ffee"}
    spark = {"spark.authenticate.secret": "c0ffee"}
    settings = HeadraceSettings.model_validate(
        {"log": {"kafka": {"client": client}}, "store": {"cassandra": cassandra}, "pipeline": {"spark": spark}}
    )
    assert "c0ffee" not in repr(settings) + str(settings) + repr(settings.describe())
