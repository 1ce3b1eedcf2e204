"""`headrace services`: what a person types, and what stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.cli import main
from headrace.services import RunningService

HEADRACE = [sys.executable, "-c", "from headrace.cli import main; main()", "services"]


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Any]:
    """Run the command in a folder of its own; what it started is stopped at the end."""
    environment = {**os.environ, "HEADRACE_SERVICES_DIR": str(tmp_path / "services"), "COLUMNS": "200"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*HEADRACE, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    run.environment = environment  # type: ignore[attr-defined]
    yield run
    run("down", "--purge")


def rows(services: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in services("status", "--json").stdout.splitlines()]


@pytest.mark.servers
@pytest.mark.timeout(180)
def test_up_outlives_its_command_and_down_ends_it(services: Any, tmp_path: Path) -> None:
    """`up` leaves a server that answers, `up` again says so, `down` stops it and keeps its data, `--purge` does not."""
    came_up = services("up", "zookeeper")
    assert came_up.returncode == 0, came_up.stderr
    (row,) = rows(services)
    server = psutil.Process(row["pid"])
    assert row["state"] == "up"
    assert came_up.stdout == f"zookeeper {row['address']}\n"

    again = services("up", "zookeeper")
    assert (again.returncode, "was up already" in again.stdout) == (0, True)
    assert [one["pid"] for one in rows(services)] == [row["pid"]]
    assert row["address"] in services("status").stdout
    assert "srvr" in services("logs", "zookeeper", "-n", "500").stdout

    assert "zookeeper is down, its data is kept" in services("down", "zookeeper").stdout
    assert not server.is_running()
    assert rows(services)[0]["state"] == "down"
    assert Path(row["data"]).exists()

    assert "its data is gone" in services("down", "--purge").stdout
    assert not (tmp_path / "services" / "zookeeper").exists()
    assert "nothing was started from here" in services("status").stdout


@pytest.mark.servers
@pytest.mark.timeout(180)
def test_a_server_that_died_is_started_again_at_its_address(services: Any) -> None:
    """After kill -9 of a detached server, `status` says down and `up` brings it back."""
    services("up", "zookeeper")
    (before,) = rows(services)
    psutil.Process(before["pid"]).kill()
    assert rows(services)[0]["state"] == "down"

    assert services("up", "zookeeper").returncode == 0

    (after,) = rows(services)
    assert (after["state"], after["address"]) == ("up", before["address"])
    assert after["pid"] != before["pid"]


@pytest.mark.servers
@pytest.mark.timeout(180)
def test_two_commands_at_once_start_one_server(services: Any) -> None:
    """Both `up` succeed, and one server runs."""
    argv = [*HEADRACE, "up", "zookeeper"]
    both = [
        subprocess.Popen(argv, env=services.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    outcomes = [(command.communicate(timeout=100), command.returncode) for command in both]

    assert [code for _, code in outcomes] == [0, 0], outcomes
    assert sorted(b"already" in out for (out, _), _ in outcomes) == [False, True]


@pytest.mark.servers
@pytest.mark.timeout(180)
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_foreground_servers_end_with_the_command(services: Any, ending: signal.Signals, eventually: Any) -> None:
    """However `up --foreground` ends, its server ends too; asked nicely it exits with 0."""
    argv = [*HEADRACE, "up", "zookeeper", "--foreground"]
    with subprocess.Popen(
        argv, env=services.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout
        assert command.stderr
        assert command.stdout.readline().startswith("zookeeper 127.0.0.1:")
        while "Ctrl-C" not in command.stderr.readline():
            pass
        servers = psutil.Process(command.pid).children(recursive=True)

        command.send_signal(ending)

        code = command.wait(30)
    assert code == (0 if ending != signal.SIGKILL else -signal.SIGKILL)
    assert len(servers) == 2
    eventually(lambda: not any(one.is_running() for one in servers), what="the end of server and keeper")


@pytest.mark.servers
def test_a_given_port_is_used(services: Any) -> None:
    """`--port NAME=PORT` decides the address."""
    from headrace.services.layouts import free_port

    port = free_port(["127.0.0.1"], taken=set())

    assert services("up", "zookeeper", "--port", f"zookeeper={port}").stdout == f"zookeeper 127.0.0.1:{port}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["up", "kafak"], "these can be started: kafka, cassandra, zookeeper, registry, postgres, mariadb"),
        (["down", "kafak"], "these can be started: kafka"),
        (["status", "kafak"], "these can be started: kafka"),
        (["logs", "kafka"], "no server was started from here; run: headrace services up kafka"),
        (["up", "kafka", "--port", "kafka"], "written NAME=PORT"),
        (["up", "kafka", "--port", "kafak=1"], "these can be started: kafka"),
        (["up", "kafka", "--set", "kafka.x"], "written NAME.KEY=VALUE"),
        (
            ["up", "kafka", "--nodes", "2"],
            "this command starts only kafka; leave the option out, or name cassandra too",
        ),
    ],
)
def test_a_mistake_is_one_message_with_the_way_out(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Wrong names and options end with code 1 and say what would be right."""
    monkeypatch.setenv("HEADRACE_SERVICES_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["headrace", "services", *arguments])

    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 1
    assert message in capfd.readouterr().err


@pytest.mark.servers
def test_a_failed_up_leaves_nothing_behind(services: Any, tmp_path: Path) -> None:
    """When a port is taken, no folder and no note of the service stay."""
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = services("up", "zookeeper", "--port", f"zookeeper={port}")

    assert done.returncode == 1
    assert f"127.0.0.1:{port} is in use" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in (tmp_path / "services").iterdir() if path.suffix != ".lock"] == []


def test_the_compose_file_offers_the_same_six_on_loopback() -> None:
    """Every service has a pinned image and publishes its ports on 127.0.0.1 only."""
    import yaml

    from headrace.services import NAMES

    compose = yaml.safe_load((Path(__file__).parents[2] / "compose.yaml").read_text())

    assert set(compose["services"]) == set(NAMES)
    for service in compose["services"].values():
        assert ":" in service["image"]
        assert not service["image"].endswith(":latest")
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


@pytest.mark.servers
@pytest.mark.timeout(180)
def test_a_service_found_again_can_be_restarted(services: Any, tmp_path: Path) -> None:
    """A program that finds a detached service has the same hold on it as the one that started it."""
    from headrace.services import Detached

    services("up", "zookeeper")
    found = Detached(tmp_path / "services").find("zookeeper")
    assert found is not None
    pids = found.pids

    found.restart()

    assert found.is_ready
    assert found.pids != pids


@pytest.mark.servers
@pytest.mark.timeout(180)
def test_a_folder_given_to_up_finds_its_servers_again(services: Any, tmp_path: Path) -> None:
    """`status`, `logs`, `env` and `down` take the --data of `up`, wherever they are called from."""
    data = ("--data", str(tmp_path / "kept"))
    came_up = services("up", "zookeeper", *data)
    assert f"headrace services down --data {tmp_path / 'kept'}" in came_up.stderr
    services.environment["HEADRACE_SERVICES_DIR"] = str(tmp_path / "elsewhere")
    try:
        assert "nothing was started from here" in services("status").stdout
        row = json.loads(services("status", *data, "--json").stdout)
        assert (row["state"], row["data"].startswith(data[1])) == ("up", True)
        assert services("logs", "zookeeper", *data).returncode == 0
        assert services("env", "zookeeper", *data).returncode == 0
        assert not (tmp_path / "elsewhere").exists()
    finally:
        ended = services("down", "--purge", *data)
    assert "zookeeper is down, its data is gone" in ended.stdout
    assert "nothing was started from here" in services("status", *data).stdout


@pytest.mark.servers
@pytest.mark.timeout(300)
def test_the_variables_move_a_program_to_the_servers(
    services: Any, kafka: RunningService, cassandra: RunningService, tmp_path: Path
) -> None:
    """After `eval "$(headrace services env)"` a command appends and reads on Kafka and Cassandra, not in a folder."""
    known = Path(services.environment["HEADRACE_SERVICES_DIR"])
    known.mkdir(parents=True)
    for service in (kafka, cassandra):
        (known / f"{service.name}.json").write_text(json.dumps({"folder": str(service.folder)}))
    topic = f"env-{uuid.uuid4().hex[:8]}"
    headrace = f"{sys.executable} -m headrace"
    script = (
        f'set -e; eval "$({headrace} services env kafka cassandra --keyspace moved)"\n'
        f"{headrace} journal append {topic} a 1; {headrace} journal read {topic} a --json; {headrace} topic list"
    )
    done = subprocess.run(
        ["bash", "-c", script], env=services.environment, cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    for service in (kafka, cassandra):
        (known / f"{service.name}.json").unlink()  # they are the whole run's: nobody stops them here
    assert done.returncode == 0, done.stderr
    assert topic in done.stdout.splitlines()
    assert not (tmp_path / "data").exists()
