"""The environment of figures: the machine, without its name, and the versions of all software involved."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from headrace.services.packages import locked

__all__ = ["Environment", "Machine", "Run", "environment", "this_run"]

HERE = Path(__file__).parent
SERVERS = {"Kafka": ("kafka", "kafka_2.13"), "Cassandra": ("cassandra", "cassandra-all")}
DRIVERS = ("headrace", "confluent-kafka", "cassandra-driver", "pyspark")


class Machine(msgspec.Struct, frozen=True):
    """The properties of a machine that influence its figures."""

    cores: int
    memory_gib: int
    cpu: str
    system: str


class Environment(msgspec.Struct, frozen=True):
    """A machine and the versions on it. Figures of equal environments share a table."""

    machine: Machine
    versions: dict[str, str]


class Run(msgspec.Struct, frozen=True):
    """One call of the command: the day, the commit, and the load it found on the machine."""

    date: str
    commit: str
    load: float


def this_run() -> Run:
    """Describe the run that begins now; later, the benches would be part of the load."""
    return Run(datetime.now(UTC).date().isoformat(), _commit(), round(os.getloadavg()[0], 1))


def environment() -> Environment:
    """Describe this machine and its versions."""
    return Environment(_machine(), {**_languages(), **_servers(), **_drivers()})


def _commit() -> str:
    asked = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(asked, cwd=HERE, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"  # a copy without its history


def _machine() -> Machine:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_gib=round(memory / 2**30),
        cpu=_cpu(),
        system=f"{platform.system()} {platform.machine()}",
    )


def _cpu() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown"


def _languages() -> dict[str, str]:
    return {"Python": platform.python_version(), "SQLite": sqlite3.sqlite_version}


def _servers() -> dict[str, str]:
    return {
        name: package.version
        for name, (service, artifact) in SERVERS.items()
        for package in locked(service)
        if package.artifact == artifact
    }


def _drivers() -> dict[str, str]:
    found = {}
    for name in DRIVERS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
