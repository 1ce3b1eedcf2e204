"""Cassandra with a login and TLS."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.secured.authority import Authority
from tests.secured.servers import Secured
from tests.secured.test_kafka_login import QUICK_S, says_no_secret

from headrace.config import StoreSettings
from headrace.errors import BadArgument, Forbidden, HeadraceError
from headrace.store import open_store

pytestmark = pytest.mark.servers


async def refused(secured: Secured, **changed: object) -> HeadraceError:
    """Open a store that must not open."""
    settings = StoreSettings.model_validate({"cassandra": secured.cassandra_login(**changed)})
    started = time.monotonic()
    with pytest.raises(HeadraceError) as failed:
        await open_store(secured.store(), settings=settings)
    assert time.monotonic() - started < QUICK_S
    assert says_no_secret(failed.value, "c0ffee", *secured.tokens)
    return failed.value


async def test_a_user_logs_in(secured: Secured) -> None:
    """K2: name and password of the settings log in over TLS, whatever signs the password has."""
    settings = StoreSettings.model_validate({"cassandra": secured.cassandra_login()})
    store = await open_store(secured.store(), settings=settings)
    try:
        assert await store.settings.put("a", "b", expected=None) in (True, False)
        assert await store.settings.get("a") == "b"
    finally:
        await store.close()


async def test_a_wrong_password_is_told_at_once(secured: Secured) -> None:
    """K2: Forbidden, which is not retried, with the node's reason, without the password."""
    error = await refused(secured, password="wrong-c0ffee")
    assert isinstance(error, Forbidden)
    assert "password are incorrect" in str(error)


async def test_a_missing_login_is_told_at_once(secured: Secured) -> None:
    """K2: a node that wants a login, and none in the settings."""
    error = await refused(secured, username=None)
    assert isinstance(error, Forbidden)


async def test_a_node_we_do_not_trust_is_refused(secured: Secured, tmp_path: Path) -> None:
    """K2: a certificate of another authority: Forbidden, which is not retried; no password is sent there."""
    error = await refused(secured, ca_location=str(Authority(tmp_path, "stranger").ca))
    assert isinstance(error, Forbidden)
    assert "certificate verify failed" in str(error)


async def test_a_file_that_is_not_there_is_named(secured: Secured, tmp_path: Path) -> None:
    """K2: the settings' files are checked, and the setting is named."""
    error = await refused(secured, ca_location=str(tmp_path / "none.pem"))
    assert isinstance(error, BadArgument)
    assert "store.cassandra.ca_location" in str(error)
    certificate, key = secured.client
    error = await refused(
        secured, certificate_location=str(certificate), key_location=str(key), key_password="wrong-c0ffee"
    )
    assert isinstance(error, BadArgument)
    assert "key_password" in str(error)


async def test_an_address_with_a_password_is_not_repeated() -> None:
    """K2: credentials belong into the settings; an address that has some is refused without showing them."""
    for address in ("cassandra://app:c0ffee@host/ks", "cassandra://app:c0ffee@host/"):
        with pytest.raises(BadArgument) as failed:
            await open_store(address)
        assert says_no_secret(failed.value, "c0ffee")
