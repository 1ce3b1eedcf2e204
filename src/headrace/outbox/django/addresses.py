"""From Django's settings of a database to its address, for relays and for the `headrace` command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections
from sqlalchemy import URL

from headrace.errors import BadArgument

__all__ = ["database_url", "url_of_settings"]

_DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "sqlite": "sqlite"}
# What the drivers of both sides call alike. Others are Django's own, or of the driver that Django uses.
_OPTIONS = {
    "postgresql": {
        *("sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslpassword"),
        *("options", "service", "passfile", "connect_timeout", "application_name", "target_session_attrs"),
    },
    "mysql": {"charset", "unix_socket", "read_default_file", "read_default_group", "connect_timeout"},
    "sqlite": {"timeout"},
}


def database_url(using: str = DEFAULT_DB_ALIAS) -> URL:
    """Return the address of one of Django's databases: `Relay(database_url(), log)`. Raises BadArgument."""
    connection = connections[using]
    return url_of_settings(connection.vendor, connection.settings_dict)


def url_of_settings(vendor: str, settings: Mapping[str, Any]) -> URL:
    """Return the address that an entry of DATABASES means."""
    if vendor not in _DRIVERS:
        raise BadArgument("using", vendor, f"the outbox knows {', '.join(_DRIVERS)}")
    if vendor == "sqlite":
        return URL.create("sqlite", database=str(settings["NAME"]), query=_query(vendor, settings))
    host, query = str(settings.get("HOST") or ""), _query(vendor, settings)
    if host.startswith("/"):  # the folder, or the file, of a socket
        query["host" if vendor == "postgresql" else "unix_socket"] = host
        host = ""
    return URL.create(
        _DRIVERS[vendor],
        username=settings.get("USER") or None,
        password=settings.get("PASSWORD") or None,
        host=host or None,
        port=int(settings["PORT"]) if settings.get("PORT") else None,
        database=str(settings.get("NAME") or "") or None,
        query=query,
    )


def _query(vendor: str, settings: Mapping[str, Any]) -> dict[str, str]:
    options: Mapping[str, Any] = settings.get("OPTIONS") or {}
    found = {name: str(value) for name, value in options.items() if name in _OPTIONS[vendor]}
    if vendor == "mysql" and isinstance(options.get("ssl"), Mapping):
        found |= {f"ssl_{name}": str(value) for name, value in options["ssl"].items()}
    return found
