"""Starting, stopping, killing and freezing servers, one by one and together."""

from __future__ import annotations

import os
import signal
import socket
import uuid
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.errors import BadArgument, ServiceFailed, UnsupportedPlatform
from headrace.services import layouts, start
from headrace.services.java import find_java
from headrace.services.kafka import cluster_id
from headrace.services.layouts import PORT_RANGE
from headrace.services.processes import ServerProcess


@pytest.mark.servers
def test_a_stopped_service_is_gone_with_its_data() -> None:
    """After the context its processes and its throw-away folder are gone."""
    with start("zookeeper") as service:
        server, keeper = psutil.Process(service.pids[0]), psutil.Process(service.pids[0]).parent()
        assert service.folder.exists()

    assert service.pids == ()
    assert not server.is_running()
    assert keeper is not None
    assert not keeper.is_running()
    assert not service.folder.exists()


@pytest.mark.servers
def test_data_in_a_named_folder_is_there_after_a_kill(tmp_path: Path) -> None:
    """A node written before kill -9 is read after a new start, at the same address."""
    from kazoo.client import KazooClient

    def client(address: str) -> Any:
        connected = KazooClient(address)
        connected.start(timeout=20)
        return connected

    with start("zookeeper", data_dir=tmp_path / "zk") as service:
        address = service.address
        before = client(address)
        before.create("/kept", b"yes")
        service.kill()
        before.stop()
        before.close()

    with start("zookeeper", data_dir=tmp_path / "zk") as again:
        after = client(again.address)
        assert after.get("/kept")[0] == b"yes"
        assert again.address == address
        after.stop()
        after.close()

    assert (tmp_path / "zk").exists()


@pytest.mark.servers
def test_one_node_of_a_cluster_goes_and_comes_back(eventually: Any) -> None:
    """Killing a node leaves the others serving; started again it serves at its old address."""
    with start("zookeeper", nodes=3) as service:
        lost = service.nodes[2]
        address, old_pid = lost.address, lost.pid

        lost.kill()
        assert not lost.is_running
        assert len(service.pids) == 2
        eventually(lambda: all(node.is_ready for node in service.nodes[:2]), what="a new quorum")

        lost.start()
        assert service.is_ready
        assert lost.address == address
        assert lost.pid not in (None, old_pid)


@pytest.mark.servers
def test_a_paused_server_answers_again_after_resume(eventually: Any) -> None:
    """A frozen server keeps its process and answers nobody until it is let go on."""
    with start("zookeeper") as service:
        service.pause()
        assert psutil.Process(service.pids[0]).status() == psutil.STATUS_STOPPED
        assert not service.is_ready

        service.resume()
        eventually(lambda: service.is_ready, what="an answer")


@pytest.mark.servers
def test_a_paused_server_can_be_stopped() -> None:
    """A frozen server goes down like any other."""
    with start("zookeeper") as service:
        service.pause()

    assert service.pids == ()


@pytest.mark.servers
def test_a_restarted_service_keeps_its_address() -> None:
    """`restart` brings a new process to the same port."""
    with start("zookeeper") as service:
        address, pids = service.address, service.pids
        service.restart()

        assert service.is_ready
        assert service.address == address
        assert service.pids != pids


def test_given_properties_win(kafka_properties: dict[str, str]) -> None:
    """What the caller sets stands in the broker's configuration in place of ours."""
    assert kafka_properties["num.io.threads"] == "7"
    assert kafka_properties["auto.create.topics.enable"] == "false"


@pytest.fixture
def kafka_properties(tmp_path: Path) -> dict[str, str]:
    from headrace.services.kafka import server_properties
    from headrace.services.layouts import StartOptions, lay_out
    from headrace.services.starter import service_named

    layout = lay_out(service_named("kafka"), tmp_path, StartOptions(properties={"num.io.threads": "7"}))
    return server_properties(layout.nodes[0], layout)


def test_an_unknown_service_is_refused_with_the_names_there_are() -> None:
    """A wrong name lists the right ones."""
    with pytest.raises(BadArgument, match="kafka, cassandra, zookeeper, registry, postgres, mariadb"):
        start("kafak")


@pytest.mark.servers
def test_an_occupied_port_is_refused_by_its_number(tmp_path: Path) -> None:
    """A port that somebody listens on is named, and nothing stays behind."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        with pytest.raises(BadArgument, match=f"127.0.0.1:{port} is in use"):
            start("zookeeper", ports={"client": port}, data_dir=tmp_path / "zk")

    assert not (tmp_path / "zk" / "layout.json").exists()


@pytest.mark.servers
@pytest.mark.parametrize("nodes", [0, 99])
def test_an_impossible_number_of_nodes_is_refused(nodes: int) -> None:
    """Too few and too many are refused with the range."""
    with pytest.raises(BadArgument, match="runs on 1 to"):
        start("kafka", nodes=nodes)


@pytest.mark.servers
def test_an_unknown_port_role_is_refused() -> None:
    """A role the service does not have lists those it has."""
    with pytest.raises(BadArgument, match="has the ports zookeeper, client"):
        start("zookeeper", ports={"jmx": 1})


@pytest.mark.servers
def test_a_server_that_fails_says_why() -> None:
    """A server that ends while starting is a ServiceFailed with the end of its log."""
    with pytest.raises(ServiceFailed, match="it ended while starting") as caught:
        start("zookeeper", properties={"tickTime": "often"})

    assert "often" in caught.value.log_tail


@pytest.mark.servers
def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    """Two servers never share a data folder."""
    with start("zookeeper", data_dir=tmp_path), pytest.raises(ServiceFailed, match=r"runs on .* already"):
        start("zookeeper", data_dir=tmp_path)


def test_java_that_is_not_there_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without Java the error says what to install."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedPlatform, match="Java 17 is needed, found none on the PATH"):
        find_java()

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UnsupportedPlatform, match="which has no bin/java"):
        find_java()


@pytest.mark.parametrize(("version", "newest"), [("11.0.2", None), ("21.0.1", 17)])
def test_java_of_another_version_is_refused(
    version: str, newest: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A Java that is too old, or too new for Cassandra, is named with its version."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(UnsupportedPlatform, match=f"found Java {version.split('.')[0]} at"):
        find_java(newest=newest)


def test_a_pid_that_was_used_again_is_not_ours() -> None:
    """A process with the noted pid but another start time is neither seen nor hit."""
    me = psutil.Process()
    stranger = ServerProcess(os.getpid(), me.create_time() - 100)

    assert not stranger.is_running
    stranger.stop(signal.SIGTERM, grace_s=0)
    stranger.kill()
    assert me.is_running()


def test_chosen_ports_lie_outside_the_range_of_outgoing_connections() -> None:
    """A client that knocks at a port whose server is down must not be given that port for its own end."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])

    assert PORT_RANGE.stop <= low


@pytest.mark.servers
def test_kafka_takes_a_cluster_id_that_begins_with_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    """One random id in 64 does; the tool that formats the data folder must not take it for an option."""
    identity = uuid.UUID("f8000000-0000-4000-8000-000000000000")
    assert cluster_id(str(identity)).startswith("-")
    monkeypatch.setattr(layouts.uuid, "uuid4", lambda: identity)
    with start("kafka") as service:
        assert service.is_ready
