"""The choice of a projection's target: its database, or the store."""

from __future__ import annotations

from headrace.errors import MissingExtra
from headrace.projection.ports import Target
from headrace.projection.projection import Projection
from headrace.projection.store_target import StoreTarget
from headrace.store import SharedSettings

__all__ = ["open_target"]


def open_target(projection: Projection, settings: SharedSettings) -> Target:
    """Return the target of a projection. Raises MissingExtra if SQLAlchemy is needed and not installed."""
    if projection.database is None:
        return StoreTarget(settings, projection)
    try:
        from sqlalchemy import Engine, create_engine, make_url
        from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

        from headrace.projection.sql_target import SqlTarget
    except ModuleNotFoundError as missing:
        raise MissingExtra("sqlalchemy", "projection") from missing
    database = projection.database
    if isinstance(database, Engine | AsyncEngine):
        return SqlTarget(database, projection, is_ours=False)
    url = make_url(database)
    make = create_async_engine if url.get_dialect().is_async else create_engine
    return SqlTarget(make(url), projection, is_ours=True)
