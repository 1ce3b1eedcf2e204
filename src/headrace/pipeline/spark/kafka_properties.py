"""Client properties as librdkafka names them, turned into those of Kafka's Java client, which Spark uses."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import BadArgument

__all__ = ["java_properties"]

_SAME = frozenset(
    {
        "security.protocol",
        "client.id",
        "client.rack",
        "ssl.endpoint.identification.algorithm",
        "sasl.kerberos.service.name",
    }
)
_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_OF_LOGIN = frozenset({"sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"})
_PEM = {
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.keystore.location": "ssl.keystore.location",
    "ssl.keystore.password": "ssl.keystore.password",
    "ssl.key.password": "ssl.key.password",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.key.pem": "ssl.keystore.key",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
}
# Tuning of the other client, without a meaning here.
_SECURITY = ("sasl.", "ssl.", "security.", "oauth")


def java_properties(client: Mapping[str, str]) -> dict[str, str]:
    """Return the properties for the Java client. Raises BadArgument for a security property that has no like there."""
    found = {name: client[name] for name in _SAME if name in client}
    for name, java in _PEM.items():
        if name in client:
            found[java] = client[name]
    if "ssl.ca.location" in client or "ssl.ca.pem" in client:
        found["ssl.truststore.type"] = "PEM"
    if "ssl.key.pem" in client:
        found["ssl.keystore.type"] = "PEM"
    found |= _login(client)
    known = _SAME | _OF_LOGIN | _PEM.keys()
    for name in client:
        if name.startswith(_SECURITY) and name not in known:
            rule = f"Spark's Kafka client has no property like {name!r}; set its own one in pipeline.spark"
            raise BadArgument("log.kafka.client", name, rule)
    return found


def _login(client: Mapping[str, str]) -> dict[str, str]:
    mechanism = client.get("sasl.mechanism") or client.get("sasl.mechanisms")
    if mechanism is None:
        return {}
    if mechanism not in _LOGIN:
        rule = f"Spark's Kafka client logs in by {', '.join(_LOGIN)}"
        raise BadArgument("log.kafka.client", mechanism, rule)
    user, password = (_quoted(client.get(f"sasl.{part}", "")) for part in ("username", "password"))
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{_LOGIN[mechanism]} required username={user} password={password};",
    }


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
