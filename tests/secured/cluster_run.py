"""One process on Spark's local cluster, looked at by several tests: starting one is most of what they cost.

It tries ways into Kafka, then runs `headrace pipeline replicate`; at full size an executor is killed meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.secured.authority import Authority
from tests.secured.deaths import executor_killer, executors_below
from tests.secured.job import Done, append_events, replicate_arguments, run_job
from tests.secured.servers import Secured
from tests.secured.settings_files import settings_file

from headrace.config import KafkaLogSettings
from headrace.log.kafka.log import KafkaLog
from headrace.model import NewRecord, TopicConfig

CHECKS = Path(__file__).with_name("spark_checks.py")
WRONG = "wrong password"
RECORDS = 5
KEYS, EVENTS = 8, 10


@dataclass(frozen=True)
class ClusterRun:
    """How it ended. `answers` are what it found by case; `tokens` are the secrets it knew, `own` the last of them."""

    done: Done
    topic: str
    answers: Mapping[str, Any]
    tokens: Sequence[str]
    folder: Path

    @property
    def own(self) -> str:
        """A secret property of Spark, which is in its settings only."""
        return self.tokens[-1]

    @property
    def events(self) -> str:
        """What Spark's web page and its history would show."""
        return events_of(self.folder / "job")


def run_on_cluster(secured: Secured, topic: str, folder: Path, *, is_full: bool) -> ClusterRun:
    """Run it."""
    wrong, secret = secrets.token_hex(12), secrets.token_hex(12)
    job = folder / "job"
    few = {"max_records": 8, "interval_s": 0.0} if is_full else {}
    pipeline = {"master": "local-cluster[2,1,1024]", "driver_memory": "512m", **few}
    config = settings_file(secured, folder, pipeline=pipeline, spark=spark_properties(job, secret))
    every = all_cases(secured, folder, wrong)
    question = {
        "topic": f"{topic}-plain",
        "records": RECORDS,
        "cases": every if is_full else {name: every[name] for name in ("scram", "mutual", WRONG)},
        "answers": str(job / "answers.json"),
        "command": replicate_arguments(topic),
    }
    asyncio.run(make_topic(secured, question["topic"]))
    append_events(secured, topic, keys=KEYS, events=EVENTS)
    done = run_job(
        [sys.executable, str(CHECKS)],
        job,
        {"HEADRACE_CONFIG": str(config)},
        given=json.dumps(question),
        meanwhile=executor_killer(secured, topic, lambda run: executors_below(run.pid)) if is_full else None,
    )
    answers = json.loads((job / "answers.json").read_text())
    return ClusterRun(done, topic, answers, (*secured.tokens, wrong, secret), folder)


def spark_properties(folder: Path, secret: str) -> dict[str, str]:
    """Return properties that make Spark write down all it would show, and a secret one."""
    events = folder / "events"
    events.mkdir(parents=True)
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC",
        "spark.headrace.test.password": secret,
    }


def events_of(folder: Path) -> str:
    """Return what Spark wrote down."""
    return "".join(path.read_text() for path in sorted((folder / "events").rglob("*")) if path.is_file())


def all_cases(secured: Secured, folder: Path, wrong: str) -> dict[str, Any]:
    """Return settings by name."""
    bundle = folder / "bundle.pem"
    bundle.write_bytes(Authority(folder, "stranger").ca.read_bytes() + secured.authority.ca.read_bytes())
    clients = {
        "scram": secured.kafka_client(),
        "plain": secured.kafka_client(sasl_mechanism="PLAIN", sasl_password=secured.plain),
        "bundle": secured.kafka_client(ssl_ca_location=str(bundle)),
        "any host": secured.kafka_client(ssl_endpoint_identification_algorithm="none"),
        WRONG: secured.kafka_client(sasl_password=f"wrong-{wrong}"),
    }
    cases = {name: settings_of(secured, secured.log, client) for name, client in clients.items()}
    return cases | {"mutual": settings_of(secured, f"kafka://{secured.mutual}", secured.mutual_client())}


def settings_of(secured: Secured, address: str, client: dict[str, str]) -> dict[str, Any]:
    """Return settings with that client."""
    return {
        "log": {"address": address, "kafka": {"client": client}},
        "store": {"address": secured.store(), "cassandra": secured.cassandra_login()},
    }


async def make_topic(secured: Secured, topic: str) -> None:
    """Make a topic with a few records."""
    log = await KafkaLog.open(secured.log, KafkaLogSettings(client=secured.kafka_client()))
    try:
        await log.admin.create(topic, partitions=1, config=TopicConfig())
        await log.append([NewRecord(topic, b"k", b"%d" % n) for n in range(RECORDS)])
    finally:
        await log.close()
