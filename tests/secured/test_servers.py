"""All that needs servers with a login and TLS: by the plain clients, and by Spark on a cluster of executors.

One file, because files are spread over processes, and each of those would start the servers.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.secured.authority import Authority
from tests.secured.cluster_run import RECORDS, WRONG, ClusterRun, run_on_cluster
from tests.secured.job import expected, stored
from tests.secured.servers import Secured
from tests.secured.watching import holding

from headrace.config import HeadraceSettings, KafkaLogSettings, StoreSettings
from headrace.errors import BadArgument, Forbidden, HeadraceError, Unreachable
from headrace.log.kafka.log import KafkaLog
from headrace.model import NewRecord, TopicConfig, TopicPartition
from headrace.pipeline import Endpoints, Replication
from headrace.pipeline.spark.process import close_all
from headrace.store import open_store
from headrace.testing.plugin import Size

pytestmark = pytest.mark.servers

QUICK_S = 8.0


async def log_refused(address: str, client: dict[str, str]) -> HeadraceError:
    """Open a log that must not open; it is refused long before the time is up."""
    started = time.monotonic()
    with pytest.raises(HeadraceError) as failed:
        await KafkaLog.open(address, KafkaLogSettings(client=client))
    assert time.monotonic() - started < QUICK_S
    return failed.value


def says_no_secret(error: BaseException, *secrets: str) -> bool:
    """Look into the whole chain of errors."""
    texts = []
    each: BaseException | None = error
    while each is not None:
        texts += [str(each), repr(each), repr(vars(each))]
        each = each.__cause__
    return not any(secret in text for secret in secrets for text in texts)


async def works(address: str, client: dict[str, str], topic: str) -> bool:
    """Append a record and read it back."""
    log = await KafkaLog.open(address, KafkaLogSettings(client=client))
    try:
        await log.admin.create(topic, partitions=1, config=TopicConfig())
        await log.append([NewRecord(topic, b"k", b"v")])
        return [r.value async for batch in log.read(TopicPartition(topic, 0), 0, 1) for r in batch.records] == [b"v"]
    finally:
        await log.close()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
async def test_a_user_logs_in_to_kafka(secured: Secured, topic: str, mechanism: str) -> None:
    """K2: properties of the settings log in, by SCRAM and PLAIN over TLS, whatever signs the password has."""
    password = secured.plain if mechanism == "PLAIN" else secured.scram
    assert await works(secured.log, secured.kafka_client(sasl_mechanism=mechanism, sasl_password=password), topic)


async def test_a_certificate_logs_in_to_kafka(secured: Secured, topic: str) -> None:
    """K2: mutual TLS, the key's own password included."""
    assert await works(f"kafka://{secured.mutual}", secured.mutual_client(), topic)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
async def test_a_wrong_password_for_kafka_is_told_at_once(secured: Secured, mechanism: str) -> None:
    """K2: Forbidden, which is not retried, with the broker's reason, without the password."""
    error = await log_refused(secured.log, secured.kafka_client(sasl_mechanism=mechanism, sasl_password="wrong-c0ffee"))
    assert isinstance(error, Forbidden)
    assert "Authentication failed" in str(error)
    assert secured.log in str(error)
    assert says_no_secret(error, "c0ffee", *secured.tokens)


async def test_a_broker_we_do_not_trust_is_told_at_once(secured: Secured, tmp_path: Path) -> None:
    """K2: a certificate of another authority: the error names the property to look at."""
    stranger = Authority(tmp_path, "stranger")
    error = await log_refused(secured.log, secured.kafka_client(ssl_ca_location=str(stranger.ca)))
    assert isinstance(error, Forbidden)
    assert "ssl.ca.location" in str(error)
    assert says_no_secret(error, *secured.tokens)


async def test_a_property_of_kafka_that_is_none_is_refused(secured: Secured) -> None:
    """K2: a file that is not there, a name nobody knows: BadArgument, and of the other properties only names."""
    for wrong in ({"ssl_ca_location": "/no/such/file.pem"}, {"sasl_no_such": "x"}, {"security_protocol": "tls"}):
        error = await log_refused(secured.log, secured.kafka_client(**wrong))
        assert isinstance(error, BadArgument)
        assert next(iter(wrong)).replace("_", ".") in str(error)
        assert says_no_secret(error, *secured.tokens)


async def test_no_broker_there_is_told_with_the_reason() -> None:
    """K2: no refusal: what the connection ran into is in the error."""
    with pytest.raises(Unreachable, match="Connection refused"):
        await KafkaLog.open("kafka://127.0.0.1:9", KafkaLogSettings(request_timeout_s=1))


async def test_an_address_of_kafka_with_a_password_is_not_repeated() -> None:
    """K2: credentials belong into the properties; an address that has some is refused without showing them."""
    with pytest.raises(BadArgument) as failed:
        await KafkaLog.open("kafka://app:c0ffee@host:9092", KafkaLogSettings())
    assert says_no_secret(failed.value, "c0ffee")


async def store_refused(secured: Secured, **changed: object) -> HeadraceError:
    """Open a store that must not open."""
    settings = StoreSettings.model_validate({"cassandra": secured.cassandra_login(**changed)})
    started = time.monotonic()
    with pytest.raises(HeadraceError) as failed:
        await open_store(secured.store(), settings=settings)
    assert time.monotonic() - started < QUICK_S
    assert says_no_secret(failed.value, "c0ffee", *secured.tokens)
    return failed.value


async def test_a_user_logs_in_to_cassandra(secured: Secured) -> None:
    """K2: name and password of the settings log in over TLS, whatever signs the password has."""
    settings = StoreSettings.model_validate({"cassandra": secured.cassandra_login()})
    store = await open_store(secured.store(), settings=settings)
    try:
        assert await store.settings.put("a", "b", expected=None) in (True, False)
        assert await store.settings.get("a") == "b"
    finally:
        await store.close()


async def test_a_wrong_password_for_cassandra_is_told_at_once(secured: Secured) -> None:
    """K2: Forbidden, which is not retried, with the node's reason, without the password."""
    error = await store_refused(secured, password="wrong-c0ffee")
    assert isinstance(error, Forbidden)
    assert "password are incorrect" in str(error)


async def test_a_missing_login_for_cassandra_is_told_at_once(secured: Secured) -> None:
    """K2: a node that wants a login, and none in the settings."""
    error = await store_refused(secured, username=None)
    assert isinstance(error, Forbidden)


async def test_a_node_we_do_not_trust_is_refused(secured: Secured, tmp_path: Path) -> None:
    """K2: a certificate of another authority: Forbidden, which is not retried; no password is sent there."""
    error = await store_refused(secured, ca_location=str(Authority(tmp_path, "stranger").ca))
    assert isinstance(error, Forbidden)
    assert "certificate verify failed" in str(error)


async def test_a_file_that_is_not_there_is_named(secured: Secured, tmp_path: Path) -> None:
    """K2: the settings' files are checked, and the setting is named."""
    error = await store_refused(secured, ca_location=str(tmp_path / "none.pem"))
    assert isinstance(error, BadArgument)
    assert "store.cassandra.ca_location" in str(error)
    certificate, key = secured.client
    error = await store_refused(
        secured, certificate_location=str(certificate), key_location=str(key), key_password="wrong-c0ffee"
    )
    assert isinstance(error, BadArgument)
    assert "key_password" in str(error)


async def test_an_address_of_cassandra_with_a_password_is_not_repeated() -> None:
    """K2: credentials belong into the settings; an address that has some is refused without showing them."""
    for address in ("cassandra://app:c0ffee@host/ks", "cassandra://app:c0ffee@host/"):
        with pytest.raises(BadArgument) as failed:
            await open_store(address)
        assert says_no_secret(failed.value, "c0ffee")


def idle_session() -> Any:
    """Return what replication asks of a session before it begins a query."""
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False)))
    streams = SimpleNamespace(addListener=lambda _: None, removeListener=lambda _: None)
    return SimpleNamespace(conf=SimpleNamespace(get=lambda _, other: other), sparkContext=context, streams=streams)


@pytest.mark.parametrize("part", ["log", "store"])
def test_a_job_that_may_not_in_ends_at_once(secured: Secured, part: str) -> None:
    """K2: replication waits for servers that are away, not for those that refuse it."""
    wrong = "wrong-c0ffee"
    tables: dict[str, Any] = {
        "log": {"address": secured.log, "kafka": {"client": secured.kafka_client()}},
        "store": {"address": secured.store(), "cassandra": secured.cassandra_login()},
    }
    if part == "log":
        tables["log"]["kafka"]["client"]["sasl.password"] = wrong
    else:
        tables["store"]["cassandra"]["password"] = wrong
    settings = HeadraceSettings.model_validate(tables)
    nowhere = idle_session()  # it does not come as far as a query
    with pytest.raises(Forbidden) as failed:
        Replication(nowhere, Endpoints.of(settings=settings)).run(once=True)
    close_all()
    assert says_no_secret(failed.value, "c0ffee", *secured.tokens)


@pytest.fixture(scope="module")
def run(secured: Secured, size: Size, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRun]:
    """Run a process on local-cluster[2,1,1024]: ways into Kafka, replication, with --full a killed executor."""
    topic = f"s-{uuid.uuid4().hex[:12]}"
    ran = run_on_cluster(secured, topic, tmp_path_factory.mktemp("cluster"), is_full=size.is_full)
    yield ran
    for folder in ran.done.work:
        shutil.rmtree(folder)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_every_way_in_works_for_spark_and_its_workers(run: ClusterRun) -> None:
    """K2: SCRAM, PLAIN, mutual TLS by files, an authority among others, no check of the host: the Java client reads,
    a worker's client writes; files are read on the driver; plans show that something is hidden, and what."""
    cases = run.answers.keys() - {WRONG, "plans", "conf"}
    assert len(cases) >= 2
    for name in cases:
        answer = run.answers[name]
        assert (name, answer.get("error")) == (name, None)
        assert (name, answer["read"], answer["written"]) == (name, RECORDS, 1)
    error = run.answers[WRONG]["error"]
    assert "SaslAuthenticationException" in error or "Authentication failed" in error
    assert "headrace" in run.answers["plans"]
    assert "redacted" in run.answers["plans"]


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_replication_on_a_cluster_does_the_same(run: ClusterRun, secured: Secured) -> None:
    """K2: `headrace pipeline replicate` with credentials in a file, executors being processes of their own: the store
    has what the log says, row for row."""
    assert run.done.code == 0, run.done.err
    assert "replicated" in run.done.out
    assert stored(secured, run.topic) == expected(secured, run.topic)
    assert '"Executor ID":"1"' in run.events


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_killed_executor_of_a_local_cluster_harms_nothing(run: ClusterRun, secured: Secured) -> None:
    """K2, E5: an executor is killed in the middle of a task: the job goes on by itself, and nothing is missing."""
    assert '"Reason":"ExecutorLostFailure"' in run.events, "it had nothing to do when it was killed"
    assert run.done.code == 0, run.done.err
    assert stored(secured, run.topic) == expected(secured, run.topic)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_no_secret_is_seen_on_a_cluster(run: ClusterRun) -> None:
    """K2: not in outputs, command lines, files of driver and executors, plans, errors, reprs, nor what the web page
    shows."""
    assert len(run.done.commands) > 2
    assert run.done.leaks(run.tokens) == []
    assert "PRIVATE KEY" not in "".join((run.done.out, run.done.err, str(run.answers), run.events))
    (work,) = run.done.work
    assert list(work.glob("*/stderr")), "no executor left a trace of itself"
    assert '"spark.headrace.test.password":"*********(redacted)"' in run.events
    # The search itself finds what is there.
    assert len(holding([run.folder], [run.own])) == 1
