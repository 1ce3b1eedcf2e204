"""An application's URL for the blocking driver that a relay uses: what its own driver calls otherwise is renamed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from sqlalchemy import URL

from headrace.errors import BadArgument

__all__ = ["blocking_url"]

Translation: TypeAlias = Callable[[str], dict[str, str]]


def _nothing(_value: str) -> dict[str, str]:
    return {}


def _ssl_mode(value: str) -> dict[str, str]:
    return {
        "sslmode": {"true": "require", "1": "require", "false": "disable", "0": "disable"}.get(value.lower(), value)
    }


def _connect_timeout(value: str) -> dict[str, str]:
    return {"connect_timeout": str(max(2, math.ceil(float(value))))}  # libpq counts in seconds, from 2


def _direct_tls(value: str) -> dict[str, str]:
    return {"sslnegotiation": "direct"} if value.lower() in ("true", "1") else {}


_OF_STATEMENTS = (
    "command_timeout",
    "max_cacheable_statement_size",
    "max_cached_statement_lifetime",
    "prepared_statement_cache_size",
    "prepared_statement_name_func",
    "statement_cache_size",
)
_ASYNCPG: dict[str, Translation] = {
    **dict.fromkeys((*_OF_STATEMENTS, "async_fallback", "gsslib"), _nothing),
    "ssl": _ssl_mode,
    "timeout": _connect_timeout,
    "direct_tls": _direct_tls,
}
_AIOMYSQL: dict[str, Translation] = dict.fromkeys(("auth_plugin", "echo", "loop", "maxsize", "minsize"), _nothing)
_TRANSLATIONS: Mapping[str, Mapping[str, Translation]] = {
    "asyncpg": _ASYNCPG,
    "aiomysql": _AIOMYSQL,
    "asyncmy": _AIOMYSQL,
}


def blocking_url(url: URL, drivername: str) -> URL:
    """Return the URL with the driver, and its query in the driver's words. Raises BadArgument for a bad value."""
    translations = _TRANSLATIONS.get(url.drivername.partition("+")[2], {})
    query: dict[str, str | tuple[str, ...]] = {}
    for name, value in url.query.items():
        if name in translations and isinstance(value, str):
            query.update(_translated(name, value, translations[name]))
        else:
            query[name] = value
    return url.set(drivername=drivername, query=query)


def _translated(name: str, value: str, translate: Translation) -> dict[str, str]:
    try:
        return translate(value)
    except ValueError as error:
        raise BadArgument(name, value, "the database's address needs a number there") from error
