"""What the outbox's tests stand on: a database of each kind with the tables in it, and logs to send to."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import URL, Engine, create_engine, make_url, text
from tests.outbox.setting import Ground, empty

from headrace.log import Log, open_log
from headrace.outbox import migrate
from headrace.outbox.engines import engine_for, url_of
from headrace.outbox.relay_loop import RelayLoop

SERVERS = pytest.mark.servers
DATABASES = ["sqlite", pytest.param("postgres", marks=SERVERS), pytest.param("mariadb", marks=SERVERS)]
GROUNDS = [
    "sqlite-embedded",
    pytest.param("postgres-kafka", marks=SERVERS),
    pytest.param("mariadb-kafka", marks=SERVERS),
    pytest.param("sqlite-kafka", marks=SERVERS),
]
# For tests that take seconds on each ground: each database with Kafka; the embedded log is left to --full.
GROUNDS_OF_SLOW_TESTS = [pytest.param("sqlite-embedded", marks=pytest.mark.full), *GROUNDS[1:]]


def _made(server_url: str, create: str) -> URL:
    url = url_of(server_url)
    admin = create_engine(url, isolation_level="AUTOCOMMIT")
    name = f"outbox_{uuid.uuid4().hex[:8]}"
    with admin.connect() as connection:
        connection.execute(text(create.format(name=name)))
    admin.dispose()
    return url.set(database=name)


@pytest.fixture(scope="session")
def postgres_url(request: pytest.FixtureRequest) -> URL:
    """A database of the run's PostgreSQL, with the tables in it."""
    url = _made(request.getfixturevalue("postgres").url, "CREATE DATABASE {name}")
    migrate(url)
    return url


@pytest.fixture(scope="session")
def mariadb_url(request: pytest.FixtureRequest) -> URL:
    """A database of the run's MariaDB, with the tables in it."""
    url = _made(request.getfixturevalue("mariadb").url, "CREATE DATABASE {name}")
    migrate(url)
    return url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> URL:
    """A file with the tables in it."""
    url = make_url(f"sqlite:///{tmp_path / 'app.db'}")
    migrate(url)
    return url


def _database(name: str, request: pytest.FixtureRequest) -> URL:
    url: URL = request.getfixturevalue(f"{name}_url")
    return url


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest) -> URL:
    """Each kind of database in turn, empty."""
    url = _database(request.param, request)
    empty(url)
    return url


@pytest.fixture
def engine(database: URL) -> Iterator[Engine]:
    """An engine as an application has it."""
    made = engine_for(database) if database.get_backend_name() == "sqlite" else create_engine(database)
    yield made
    made.dispose()


@pytest_asyncio.fixture
async def opened() -> AsyncIterator[Callable[[str], Awaitable[Log]]]:
    """Open logs, closed at the end."""
    logs: list[Log] = []

    async def open_one(address: str) -> Log:
        logs.append(await open_log(address))
        return logs[-1]

    yield open_one
    for log in logs:
        await log.close()


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Let relays look for messages once, and then only when they are woken; set when one has looked."""
    has_looked, wait = asyncio.Event(), RelayLoop._wait_to_be_woken

    async def wait_to_be_woken(loop: RelayLoop, _delay_s: float) -> bool:
        has_looked.set()
        return await wait(loop, 3600)

    monkeypatch.setattr(RelayLoop, "_wait_to_be_woken", wait_to_be_woken)
    return has_looked


# SQLite beside the embedded log and Kafka beside the other databases show what each of them does; the last pair is left
# to --full, except where a test names it.
@pytest_asyncio.fixture(params=[*GROUNDS[:3], pytest.param("sqlite-kafka", marks=[SERVERS, pytest.mark.full])])
async def ground(
    request: pytest.FixtureRequest, tmp_path: Path, opened: Callable[[str], Awaitable[Log]]
) -> AsyncIterator[Ground]:
    """A database and a log: each database with one of the logs, or the pair that the test names."""
    kind, _, log_kind = request.param.partition("-")
    url = _database(kind, request)
    empty(url)
    address = f"embedded:{tmp_path / 'log'}" if log_kind == "embedded" else request.getfixturevalue("kafka").url
    made = Ground(url, address, await opened(address), engine_for(url))
    yield made
    made.engine.dispose()
