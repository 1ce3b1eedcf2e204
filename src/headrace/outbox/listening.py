"""LISTEN: PostgreSQL tells the relay of commits in other processes."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import URL

from headrace.outbox.waking import CHANNEL

__all__ = ["listen"]


async def listen(url: URL, wake: Callable[[], None]) -> None:
    """Call `wake` at each notification, for ever. Raises what the driver raises when the connection ends."""
    import psycopg

    conninfo = url.set(drivername="postgresql").render_as_string(hide_password=False)
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True, connect_timeout=10) as connection:
        await connection.execute(f"LISTEN {CHANNEL}")
        wake()  # for what was committed while nobody listened
        async for _ in connection.notifies():
            wake()
