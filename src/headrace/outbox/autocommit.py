"""Refusing connections without transactions: a message would be sent whatever becomes of the caller's work."""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import Connection

from headrace.errors import BadArgument

__all__ = ["need_transaction"]


def need_transaction(connection: Connection) -> None:
    """Raise BadArgument if the connection commits every statement by itself."""
    if _is_autocommit(connection):
        rule = "it commits each statement by itself (AUTOCOMMIT); publish in a transaction, on an engine that has them"
        raise BadArgument("where", connection.engine.url.render_as_string(hide_password=True), rule)


def _is_autocommit(connection: Connection) -> bool:
    asked = connection.get_execution_options().get("isolation_level")
    if asked is None:
        asked = getattr(connection.dialect, "_on_connect_isolation_level", None)
    return asked == "AUTOCOMMIT" or _is_drivers_autocommit(connection)


def _is_drivers_autocommit(connection: Connection) -> bool:
    """Return True if the driver was told so behind SQLAlchemy's back, as by connect_args."""
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "sqlite":
        # Without transactions of its own the driver leaves it to BEGIN, which an application may well say itself.
        return getattr(driver, "isolation_level", "") is None and not getattr(driver, "in_transaction", True)
    if hasattr(driver, "get_autocommit"):
        return bool(driver.get_autocommit())
    return getattr(driver, "autocommit", False) is True
