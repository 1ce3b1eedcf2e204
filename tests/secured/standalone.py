"""A Spark cluster of its own on loopback, whose machines know nothing of this checkout."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark
from tests.secured.deaths import executors_below, until
from tests.secured.job import QUICK_JAVA

from headrace.services.java import find_java
from headrace.services.layouts import free_port
from headrace.testing.processes import ChildProcess

SPARK_HOME = Path(pyspark.__file__).parent


@dataclass(frozen=True)
class Standalone:
    """A master and its workers."""

    url: str
    folder: Path
    workers: tuple[ChildProcess, ...]

    def executors(self) -> list[psutil.Process]:
        """Return the processes in which tasks run now."""
        return executors_below(*(worker.pid for worker in self.workers))

    def work(self) -> set[Path]:
        """Return what each executor that ever ran had to say."""
        return set(self.folder.glob("worker-*/work/app-*/*/stderr"))


def bare(folder: Path, **more: str) -> dict[str, str]:
    """Return the environment of a machine that has Java and Python, and nothing of ours."""
    interpreter = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    return {
        "PATH": f"{find_java().resolve().parent}:/usr/bin:/bin",
        "HOME": str(folder),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "HEADRACE_PYTHON": str(interpreter),
        **QUICK_JAVA,
        **more,
    }


def alone(command: list[str], environ: Mapping[str, str], cwd: Path) -> list[str]:
    """Return the command as it is run with that environment only, in that folder."""
    env = shutil.which("env") or "/usr/bin/env"
    return [env, "-i", "-C", str(cwd), *(f"{name}={value}" for name, value in environ.items()), *command]


@contextmanager
def standalone(folder: Path, *, workers: int = 2) -> Iterator[Standalone]:
    """Start a master and workers with one core each; wait until they know one another."""
    host, taken = "127.0.0.1", set[int]()
    port = str(free_port([host], taken=taken))
    url = f"spark://{host}:{port}"
    where = ["--host", host, "--port", port, "--webui-port", str(free_port([host], taken=taken))]
    with ExitStack() as stack:
        master = _start(stack, folder / "master", "org.apache.spark.deploy.master.Master", *where)
        until(lambda: "I have been elected leader" in master.stderr)
        size = ["--host", host, "--cores", "1", "--memory", "1g", "--webui-port"]
        pool = tuple(
            _start(
                stack,
                folder / f"worker-{n}",
                "org.apache.spark.deploy.worker.Worker",
                *size,
                str(free_port([host], taken=taken)),
                url,
            )
            for n in range(workers)
        )
        until(lambda: all("Successfully registered with master" in each.stderr for each in pool))
        yield Standalone(url, folder, pool)


def _start(stack: ExitStack, folder: Path, name: str, *options: str) -> ChildProcess:
    folder.mkdir(parents=True)
    environ = bare(folder, SPARK_WORKER_DIR=str(folder / "work"), SPARK_DAEMON_MEMORY="256m")
    child = ChildProcess(alone([str(SPARK_HOME / "bin" / "spark-class"), name, *options], environ, folder))
    stack.callback(child.end)
    return child
