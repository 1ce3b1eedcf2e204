"""Translation of librdkafka's client properties to those of Kafka's Java client, which Spark uses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.errors import BadArgument, MissingExtra
from headrace.pipeline.spark.endpoints import pem_of

__all__ = ["java_key", "java_properties"]

_PLAIN = "-----BEGIN PRIVATE KEY-----"


def java_key(pem: str, password: str | None) -> str:
    """Return a private key as PKCS#8 without a password, the only form that Kafka's Java client reads.

    librdkafka takes many forms. Java 17 can't open keys that today's tools encrypt (PBES2), so a key is decrypted
    here, on the driver, and passed on as a property that Spark and Kafka hide. Raises BadArgument if that fails.
    """
    if _PLAIN in pem:
        return pem
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError as error:
        raise MissingExtra("cryptography", "pipeline") from error
    try:
        key = serialization.load_pem_private_key(pem.encode(), password.encode() if password else None)
    except (TypeError, ValueError) as error:  # the messages of these errors hold no part of the key
        rule = f"it must be a key in PEM format that ssl.key.password opens: {error}"
        raise BadArgument("log.kafka.client", "ssl.key", rule) from error
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption()).decode()


_SAME = frozenset({"client.id", "client.rack", "sasl.kerberos.service.name"})
_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_OF_LOGIN = frozenset({"sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"})
_PROTOCOL, _HOST_CHECK = "security.protocol", "ssl.endpoint.identification.algorithm"
_PKCS12 = ("ssl.keystore.location", "ssl.keystore.password")
_KEY_PASSWORD = "ssl.key.password"  # noqa: S105 - its name
_PEM = {
    "ssl.ca": "ssl.truststore.certificates",
    "ssl.certificate": "ssl.keystore.certificate.chain",
    "ssl.key": "ssl.keystore.key",
}
_KNOWN = (
    _SAME
    | _OF_LOGIN
    | {_PROTOCOL, _HOST_CHECK, _KEY_PASSWORD, *_PKCS12}
    | {f"{name}.{form}" for name in _PEM for form in ("pem", "location")}
)
_NO_CHECK = "enable.ssl.certificate.verification"
# All other properties tune librdkafka, and mean nothing to the Java client.
_SECURITY = ("sasl.", "ssl.", "security.", "oauth", _NO_CHECK)


def java_properties(client: Mapping[str, str]) -> dict[str, str]:
    """Return the Java client's properties. Raises BadArgument for a security property that has no equivalent.

    Files are read here, because Kafka's client runs on Spark's executors, whose machines may not have the files.
    """
    _refuse_unknown(client)
    found = {name: client[name] for name in _SAME if name in client}
    if _PROTOCOL in client:
        found[_PROTOCOL] = client[_PROTOCOL].upper()
    if _HOST_CHECK in client:
        found[_HOST_CHECK] = "" if client[_HOST_CHECK] == "none" else client[_HOST_CHECK]
    return found | _certificates(client) | _login(client)


def _refuse_unknown(client: Mapping[str, str]) -> None:
    for name, value in client.items():
        if name == _NO_CHECK and value.lower() in ("true", "1"):
            continue
        if name.startswith(_SECURITY) and name not in _KNOWN:
            raise BadArgument("log.kafka.client", name, "Spark's Kafka client has no property like it")


def _certificates(client: Mapping[str, str]) -> dict[str, str]:
    found = {java: pem for name, java in _PEM.items() if (pem := _pem(client, name)) is not None}
    if _PEM["ssl.ca"] in found:
        found["ssl.truststore.type"] = "PEM"
    if (key := found.get(_PEM["ssl.key"])) is not None:
        found |= {_PEM["ssl.key"]: java_key(key, client.get(_KEY_PASSWORD)), "ssl.keystore.type": "PEM"}
    elif _PKCS12[0] in client:
        found |= {name: client[name] for name in (*_PKCS12, _KEY_PASSWORD) if name in client}
        found["ssl.keystore.type"] = "PKCS12"
    return found


def _pem(client: Mapping[str, str], name: str) -> str | None:
    location = f"{name}.location"
    if f"{name}.pem" in client:
        return client[f"{name}.pem"]
    if location not in client or (name == "ssl.ca" and client[location] == "probe"):
        return None
    if Path(client[location]).is_dir():
        rule = "Spark's Kafka client takes one file with all certificates, not a folder"
        raise BadArgument(f"log.kafka.client {location}", client[location], rule)
    return pem_of(client, location)


def _login(client: Mapping[str, str]) -> dict[str, str]:
    mechanism = client.get("sasl.mechanism") or client.get("sasl.mechanisms")
    if mechanism is None:
        return {}
    if mechanism not in _LOGIN:
        rule = f"Spark's Kafka client logs in by {', '.join(_LOGIN)}"
        raise BadArgument("log.kafka.client sasl.mechanism", mechanism, rule)
    user, password = (_quoted(client.get(f"sasl.{part}", "")) for part in ("username", "password"))
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{_LOGIN[mechanism]} required username={user} password={password};",
    }


def _quoted(text: str) -> str:
    """Quote a text for JAAS, where a text can't span lines."""
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(plain, escaped)
    return f'"{text}"'
