"""MySQL and MariaDB, with PyMySQL."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from sqlalchemy import URL, Engine, event

from headrace.outbox.dialects.dialect import CONNECT_S, Condition, Dialect, Translation, ignored, unasked, whole_s

__all__ = ["MySQL"]

_LOCK_NAME = "headrace_outbox_version"
_LOCK_S = 60
# PyMySQL has no keep-alive. No statement of ours takes that long, but a count of a huge backlog comes near.
_SILENCE_S = 300
_TABLE_EXISTS = 1050

_DRIVERS = ("pymysql", "aiomysql", "asyncmy", "MySQLdb", "mariadb")
_TRANSIENT_NUMBERS = {
    *(1205, 1213, 1206, 1614, 1020, 3572),  # lock time-out, deadlock, too many locks, a row that was changed meanwhile
    *(1927, 1053, 1077, 1078, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 4031),  # killed, shutting down, cut off
    *(2002, 2003, 2006, 2012, 2013, 2014, 2045, 2055),  # the client's own: no connection, or none any more
    *(1317, 1028, 1969, 3024),  # the statement was ended, by an operator or by its time-out
    *(1040, 1203, 1226, 1037, 1038, 1041, 1135, 1637),  # too many connections, or out of memory
    *(1021, 1030, 1114, 1026, 3),  # no room on the disk, or an error of it
    *(1290, 1792, 1836, 1047, 1180),  # read-only for now, a cluster that is not ready, a commit that failed
}
_ASYNC_ARGUMENTS = dict.fromkeys(("auth_plugin", "echo", "loop", "maxsize", "minsize"), ignored)


class MySQL(Dialect):
    """MySQL and MariaDB."""

    name = "mysql"
    key = "`key`"
    now_ms = "CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000 AS SIGNED)"
    insert_or_ignore = ("INSERT IGNORE", "")
    # A small table would be scanned as a whole, and the scan waits for the rows of transactions that are still open:
    # the relay would stand still for as long as the slowest writer.
    delete_messages = "DELETE m FROM kafka_messages AS m FORCE INDEX (PRIMARY) WHERE "
    row_bytes = (
        "COALESCE(OCTET_LENGTH(m.message), 0) + COALESCE(OCTET_LENGTH(m.`key`), 0) "
        "+ COALESCE(OCTET_LENGTH(m.headers), 0)"
    )
    migration_lock = (f"SELECT GET_LOCK('{_LOCK_NAME}', {_LOCK_S})", f"SELECT RELEASE_LOCK('{_LOCK_NAME}')")
    driver = "pymysql"
    extra = "mysql"
    translations: ClassVar[Mapping[str, Mapping[str, Translation]]] = {
        "aiomysql": _ASYNC_ARGUMENTS,
        "asyncmy": _ASYNC_ARGUMENTS,
    }

    def with_ids(self, ids: Sequence[int]) -> Condition:
        """By a list of numbers."""
        return f"id IN ({_listed(ids)})", {}

    def without_ids(self, ids: Sequence[int]) -> Condition:
        """With nothing added to the id, or the optimizer may walk through the whole primary key around them."""
        return f"m.id + 0 NOT IN ({_listed(ids)})", {}

    def with_messages(self, event_ids: Mapping[int, str]) -> Condition:
        """By two lists, the event ids as hexadecimal."""
        condition, parameters = self.with_ids(list(event_ids))
        exact = ",".join(f"0x{event_id.encode().hex()}" for event_id in event_ids.values())
        return f"{condition} AND event_id IN ({exact})", parameters

    def session_options(self, url: URL, *, patience_s: float | None) -> dict[str, Any]:
        """READ COMMITTED: REPEATABLE READ would lock gaps, and with them the inserts of applications.

        Beyond half of its patience a server may have closed a connection that nobody used.
        """
        waits = {"connect_timeout": CONNECT_S, **({} if patience_s is None else {"read_timeout": _SILENCE_S})}
        recycle = {} if patience_s is None else {"pool_recycle": whole_s(patience_s) / 2}
        return {"isolation_level": "READ COMMITTED", "connect_args": unasked(url, waits), **recycle}

    def prepare(self, engine: Engine, *, relaxed: bool, patience_s: float | None) -> None:
        """Set the time-out of a silent session: MySQL and MariaDB share none for transactions alone."""
        if patience_s is not None:
            event.listen(engine, "connect", partial(_set_wait_timeout, whole_s(patience_s)))

    def cut(self, connection: Any) -> None:  # noqa: ANN401
        """Cut the socket, not the connection, which belongs to the thread that waits."""
        connection._sock.shutdown(socket.SHUT_RDWR)  # noqa: SLF001 - PyMySQL has no other name for it

    def is_transient(self, error: BaseException) -> bool | None:
        """By the number, which is the error's first argument."""
        number = error.args[0] if error.args else None
        is_of_driver = type(error).__module__.partition(".")[0] in _DRIVERS
        if not is_of_driver or not isinstance(number, int) or number <= 0:
            return None
        return number in _TRANSIENT_NUMBERS

    def is_about_sql(self, error: BaseException) -> bool:
        """For a table that exists already."""
        return error.args[:1] == (_TABLE_EXISTS,)


def _listed(ids: Sequence[int]) -> str:
    return ",".join(map(str, map(int, ids)))


def _set_wait_timeout(silence_s: int, connection: Any, _record: object) -> None:  # noqa: ANN401 - the driver's own
    with connection.cursor() as cursor:
        cursor.execute(f"SET SESSION wait_timeout = {silence_s}")
