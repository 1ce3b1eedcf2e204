"""What is hidden, and what is not."""

from __future__ import annotations

import pytest

from headrace.config import looks_secret, redact


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "DB_PASSWORD",
        "passwd",
        "client_secret",
        "token",
        "sasl.password",
        "sasl.jaas.config",
        "ssl.key.password",
        "ssl.key.pem",
        "aws_secret_access_key",
        "api_key",
        "apikey",
        "credentials",
        "private_key",
    ],
)
def test_names_of_secrets_are_known(name: str) -> None:
    """Whatever usually holds a secret is taken for one."""
    assert looks_secret(name)


@pytest.mark.parametrize("name", ["key", "topic", "sasl.mechanism", "ssl.key.location", "ssl.ca.location", "partition"])
def test_other_names_are_shown(name: str) -> None:
    """What an operator needs to see is not hidden."""
    assert not looks_secret(name)


def test_secrets_are_hidden_at_any_depth() -> None:
    """Tables inside tables, and addresses inside lists."""
    shown = redact("client", {"a": {"sasl.password": "x"}, "urls": ["http://u:p@h/"], "n": 1, "token": None})
    assert shown == {"a": {"sasl.password": "***"}, "urls": ["http://***@h/"], "n": 1, "token": None}
