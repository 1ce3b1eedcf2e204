"""Private keys in the one form that Kafka's Java client reads: PKCS#8, not encrypted.

librdkafka takes many forms. Java 17 can't open what today's tools write when they encrypt (PBES2), so a key is opened
here, on the driver, and goes on as a property that Spark and Kafka hide.
"""

from __future__ import annotations

from headrace.errors import BadArgument, MissingExtra

__all__ = ["java_key"]

_PLAIN = "-----BEGIN PRIVATE KEY-----"


def java_key(pem: str, password: str | None) -> str:
    """Return the key. Raises BadArgument if it is none, or the password does not open it."""
    if _PLAIN in pem:
        return pem
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError as error:
        raise MissingExtra("cryptography", "pipeline") from error
    try:
        key = serialization.load_pem_private_key(pem.encode(), password.encode() if password else None)
    except (TypeError, ValueError) as error:  # their texts hold no part of the key
        rule = f"it must be a key in PEM format that ssl.key.password opens: {error}"
        raise BadArgument("log.kafka.client", "ssl.key", rule) from error
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption()).decode()
