"""spark-submit with the packaged environment, on a cluster that does not see this checkout (docs/cluster.md)."""

from __future__ import annotations

import json
import shutil
import subprocess
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.secured.deaths import executor_killer
from tests.secured.job import append_events, expected, replicate_arguments, replicate_command, run_job, stored
from tests.secured.servers import Secured
from tests.secured.settings_files import settings_file
from tests.secured.standalone import SPARK_HOME, Standalone, bare, standalone
from tests.secured.watching import holding

from headrace.config import HeadraceSettings
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


def submit_command(master: str, *arguments: str) -> list[str]:
    """Return the documented command, with little memory."""
    small = ["--conf", "spark.executor.memory=512m", "--conf", "spark.driver.memory=512m"]
    small += ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1"]
    submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", master, "--properties-file", "spark.conf", *small]
    return [*submit, "main.py", *arguments, "--json"]


def gateway(folder: Path, settings: Path) -> dict[str, str]:
    """Return the environment of the machine that submits."""
    folder.mkdir(exist_ok=True)
    unset = dict.fromkeys(("PYTHONPATH", "VIRTUAL_ENV", "PYSPARK_PYTHON"), "")
    return {**unset, **bare(folder, HEADRACE_CONFIG=str(settings))}


def test_a_package_needs_nothing_but_python(packed: Path, tmp_path: Path) -> None:
    """K2: the packed interpreter finds all that workers import, in an empty environment; nothing of Spark is in it."""
    imports = "import headrace.pipeline.replication.task, headrace.store.cassandra.store, headrace.log.kafka.log"
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
    environ = gateway(tmp_path / "home", settings_file(secured, tmp_path, pipeline={}, spark={}))
    done = run_job(submit_command(cluster.url, *replicate_arguments(topic)), tmp_path / "job", environ, cwd=packed)
    assert done.code == 0, done.err
    assert json.loads(done.out.splitlines()[-1])["rows"] == 18  # spark-submit puts both outputs of Python into one
    assert stored(secured, topic) == expected(secured, topic)
    assert done.leaks(secured.tokens) == []
    assert cluster.work(), "no executor left a trace of itself"
    assert holding([cluster.folder, packed], secured.tokens) == []


@pytest.mark.full
@pytest.mark.servers
@pytest.mark.spark
def test_other_jobs_are_submitted_alike(
    secured: Secured, packed: Path, cluster: Standalone, topic: str, tmp_path: Path
) -> None:
    """K2: a query, which sees what is in the log only, and an audit, which finds that the store lacks nothing yet."""
    append_events(secured, topic, keys=6, events=3)
    environ = gateway(tmp_path / "home", settings_file(secured, tmp_path, pipeline={}, spark={}))
    jobs = {
        "sql": ["sql", "select count(*) as n from journal", "--topics", topic],
        "audit": ["pipeline", "audit", "--topics", topic],
    }
    said = {}
    for name, arguments in jobs.items():
        done = run_job(submit_command(cluster.url, *arguments), tmp_path / name, environ, cwd=packed)
        assert done.code == 0, done.err
        assert done.leaks(secured.tokens) == []
        said[name] = json.loads(done.out.splitlines()[-1])
    assert said["sql"] == {"n": 18}
    assert (said["audit"]["clean"], said["audit"]["found"]) == (True, 0)
    assert holding([cluster.folder], secured.tokens) == []


@pytest.mark.full
@pytest.mark.servers
@pytest.mark.spark
def test_a_master_in_the_settings_does_without_spark_submit(
    secured: Secured, cluster: Standalone, topic: str, tmp_path: Path
) -> None:
    """K2: `pipeline.master` names the cluster, whose machines have the same environment at the same path."""
    append_events(secured, topic, keys=6, events=3)
    pipeline = {"master": cluster.url, "driver_memory": "512m"}
    settings = settings_file(secured, tmp_path, pipeline=pipeline, spark={"spark.executor.memory": "512m"})
    environ = {"HEADRACE_CONFIG": str(settings), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = run_job(replicate_command(topic), tmp_path / "job", environ)
    assert done.code == 0, done.err
    assert stored(secured, topic) == expected(secured, topic)
    assert done.leaks(secured.tokens) == []
    assert holding([cluster.folder], secured.tokens) == []


@pytest.mark.full
@pytest.mark.servers
@pytest.mark.spark
def test_a_killed_executor_harms_nothing(
    secured: Secured, packed: Path, cluster: Standalone, topic: str, tmp_path: Path
) -> None:
    """K2, E5: an executor is killed in the middle of a task; another one takes its place, the job goes on by itself,
    and the store has what the log says, row for row."""
    append_events(secured, topic, keys=8, events=10)
    settings = settings_file(secured, tmp_path, pipeline={"max_records": 8, "interval_s": 0.0}, spark={})
    environ = gateway(tmp_path / "home", settings)
    before = cluster.work()
    killer = executor_killer(secured, topic, lambda _: cluster.executors())
    done = run_job(
        submit_command(cluster.url, *replicate_arguments(topic)),
        tmp_path / "job",
        environ,
        cwd=packed,
        meanwhile=killer,
    )
    assert done.code == 0, done.err
    assert stored(secured, topic) == expected(secured, topic)
    assert len(cluster.work() - before) >= len(cluster.workers) + 1, "nobody took the place of the dead"


@pytest.mark.full
@pytest.mark.servers
@pytest.mark.spark
def test_the_documented_command_replicates_on_a_local_cluster(
    secured: Secured, packed: Path, topic: str, tmp_path: Path
) -> None:
    """K2: the same command with local-cluster[2,1,1024]."""
    append_events(secured, topic, keys=6, events=3)
    environ = gateway(tmp_path / "home", settings_file(secured, tmp_path, pipeline={}, spark={}))
    done = run_job(
        submit_command("local-cluster[2,1,1024]", *replicate_arguments(topic)), tmp_path / "job", environ, cwd=packed
    )
    assert done.code == 0, done.err
    assert stored(secured, topic) == expected(secured, topic)
    assert done.leaks(secured.tokens) == []
    (work,) = done.work
    shutil.rmtree(work)


def test_the_documentation_is_what_is_tested() -> None:
    """K2: docs/cluster.md tells people to type what runs here, and its settings are read as they stand."""
    page = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
    assert "headrace pipeline package headrace-spark" in page
    assert "--properties-file spark.conf main.py pipeline replicate" in " ".join(page.replace("\\\n", " ").split())
    example = textwrap.dedent(page[page.index("    # production.toml") :].split("\n\n")[0])
    settings = HeadraceSettings.model_validate(tomllib.loads(example))
    assert settings.store.cassandra.tls
    assert settings.log.kafka.client["security.protocol"] == "SASL_SSL"
