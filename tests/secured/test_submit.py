"""spark-submit with the packaged environment, on a cluster that does not see this checkout (docs/cluster.md)."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.secured.job import TIMEOUT_S, all_of, append_events, run_job, stored_numbers
from tests.secured.servers import Secured
from tests.secured.standalone import SPARK_HOME, Standalone, bare, standalone, until
from tests.secured.watching import holding

from headrace.errors import BadArgument
from headrace.pipeline import package

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the folder that docs/cluster.md speaks of."""
    folder = tmp_path_factory.mktemp("packed") / "headrace-spark"
    package(folder)
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Start a master and two workers."""
    with standalone(tmp_path_factory.mktemp("standalone")) as running:
        yield running


def settings_file(secured: Secured, folder: Path, **pipeline: object) -> Path:
    """Write the settings with all secrets into a file that only its owner reads."""
    file = folder / "headrace.toml"
    file.touch(mode=0o600)
    settings = secured.settings()
    tables = {
        "log": {"address": secured.log},
        "log.kafka.client": settings.log.kafka.client,
        "store": {"address": secured.store()},
        "store.cassandra": secured.cassandra_login(),
        "pipeline": pipeline,
    }
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in table.items())]
    file.write_text("\n".join(lines))
    return file


def submit_command(master: str, topic: str) -> list[str]:
    """Return the documented command, with little memory."""
    small = ["--conf", "spark.executor.memory=512m", "--conf", "spark.driver.memory=512m"]
    small += ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1"]
    submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", master, "--properties-file", "spark.conf", *small]
    return [*submit, "main.py", "pipeline", "replicate", "--topics", topic, "--once", "--json"]


def gateway(folder: Path, settings: Path) -> dict[str, str]:
    """Return the environment of the machine that submits."""
    folder.mkdir(exist_ok=True)
    unset = dict.fromkeys(("PYTHONPATH", "VIRTUAL_ENV", "PYSPARK_PYTHON"), "")
    return {**unset, **bare(folder, HEADRACE_CONFIG=str(settings))}


def test_a_package_needs_nothing_but_python(packed: Path, tmp_path: Path) -> None:
    """K2: the packed interpreter finds all that workers import, in an empty environment; nothing of Spark is in it."""
    imports = "import headrace.pipeline.replicating.tasks, headrace.store.cassandra.store, headrace.log.kafka.log"
    show = (
        "import headrace, importlib.metadata as m; print(headrace.__file__, len(m.entry_points(group='headrace.log')))"
    )
    done = subprocess.run(
        [packed / "environment" / "bin" / "python", "-c", f"{imports}; {show}"],
        env=bare(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    file, count = done.stdout.split()
    assert Path(file).is_relative_to(packed / "environment" / "lib")
    assert int(count) >= 2
    assert not (packed / "environment" / "lib" / "pyspark").exists()
    for jar in (packed / "spark.conf").read_text().split("spark.jars ")[1].split("\n")[0].split(","):
        assert (packed / jar).is_file()
    with pytest.raises(BadArgument, match="there already"):
        package(packed)


def test_a_package_of_ones_own_must_be_installed(tmp_path: Path) -> None:
    """K2: a name that is not installed is refused before anything is copied."""
    with pytest.raises(BadArgument, match="no-such-package"):
        package(tmp_path / "p", own=["no-such-package"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
@pytest.mark.servers
@pytest.mark.spark
def test_the_documented_command_replicates(
    secured: Secured, packed: Path, cluster: Standalone, topic: str, tmp_path: Path
) -> None:
    """K2: spark-submit to a standalone cluster; credentials reach its workers and are seen nowhere on it."""
    append_events(secured, topic, keys=6, events=3)
    environ = gateway(tmp_path / "home", settings_file(secured, tmp_path))
    done = run_job(submit_command(cluster.url, topic), tmp_path / "job", environ, cwd=packed)
    assert done.code == 0, done.err
    assert json.loads(done.out.splitlines()[-1])["rows"] == 18  # spark-submit puts both outputs of Python into one
    assert stored_numbers(secured, topic) == all_of(6, 3)
    assert done.leaks(secured.tokens) == []
    assert list(cluster.folder.rglob("work/app-*/*/stderr")), "no executor left a trace of itself"
    assert holding([cluster.folder, packed], secured.tokens) == []


@pytest.mark.full
@pytest.mark.servers
@pytest.mark.spark
def test_a_killed_executor_harms_nothing(
    secured: Secured, packed: Path, cluster: Standalone, topic: str, tmp_path: Path
) -> None:
    """K2, E5: an executor is killed in the middle; the job goes on by itself and ends with everything in the store."""
    append_events(secured, topic, keys=8, events=4)
    environ = gateway(tmp_path / "home", settings_file(secured, tmp_path, max_records=4, interval_s=0.0))
    killed: list[int] = []

    def kill_one() -> None:
        until(lambda: len(stored_numbers(secured, topic)) > 0, TIMEOUT_S)
        victim = cluster.executors()[0]
        victim.kill()
        killed.append(victim.pid)

    killer = threading.Thread(target=kill_one)
    killer.start()
    done = run_job(submit_command(cluster.url, topic), tmp_path / "job", environ, cwd=packed)
    killer.join()
    assert killed
    assert done.code == 0, done.err
    assert stored_numbers(secured, topic) == all_of(8, 4)


@pytest.mark.full
@pytest.mark.servers
@pytest.mark.spark
def test_the_documented_command_replicates_on_a_local_cluster(
    secured: Secured, packed: Path, topic: str, tmp_path: Path
) -> None:
    """K2: the same command with local-cluster[2,1,1024]."""
    append_events(secured, topic, keys=6, events=3)
    environ = gateway(tmp_path / "home", settings_file(secured, tmp_path))
    done = run_job(submit_command("local-cluster[2,1,1024]", topic), tmp_path / "job", environ, cwd=packed)
    assert done.code == 0, done.err
    assert stored_numbers(secured, topic) == all_of(6, 3)
    assert done.leaks(secured.tokens) == []


def test_the_commands_of_the_documentation_are_the_ones_tested() -> None:
    """K2: what docs/cluster.md tells people to type is what runs here."""
    page = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
    assert "headrace pipeline package headrace-spark" in page
    assert "--properties-file spark.conf main.py pipeline replicate" in " ".join(page.replace("\\\n", " ").split())
    assert os.fspath(Path("main.py")) in page
