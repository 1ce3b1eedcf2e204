"""Apache Kafka in KRaft mode: every node is broker and controller."""

from __future__ import annotations

import base64
import signal
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path

from headrace.errors import ServiceFailed
from headrace.services.fetch import fetch
from headrace.services.java import find_java, private_tmp
from headrace.services.packages import Cache, locked
from headrace.services.ports import Command, NodePlan, ServiceLayout
from headrace.services.probes import kafka_brokers
from headrace.services.watcher import Watcher

__all__ = ["Kafka"]

LOG4J = """\
status=error
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{ISO8601} %p %c{1}: %m%n
rootLogger.level=info
rootLogger.appenderRef.out.ref=out
"""
JVM = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData")


class Kafka:
    """Brokers that do not create topics automatically, and run retention and compaction every second for tests."""

    name = "kafka"
    roles: Sequence[str] = ("client", "controller")
    most_nodes = 9
    timeout_s = 90.0
    is_seeded = False
    stop_signal = signal.SIGTERM
    grace_s = 8.0  # the last of several brokers would wait for minutes for a quorum that is gone

    def install(self, cache: Cache, watcher: Watcher) -> Sequence[Path]:
        """Fetch the jars."""
        find_java()
        return fetch(self.name, locked(self.name), cache=cache, watcher=watcher)

    def host(self, number: int) -> str:
        """All brokers share the address and differ in their ports."""
        return "127.0.0.1"

    def prepare(self, node: NodePlan, layout: ServiceLayout, files: Sequence[Path]) -> None:
        """Write server.properties, and format the data folder when it is new."""
        settings = server_properties(node, layout)
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        (node.folder / "server.properties").write_text(text)
        (node.folder / "log4j2.properties").write_text(LOG4J)
        if not (node.data / "meta.properties").exists():
            self._format(node, layout, files)

    def command(self, node: NodePlan, layout: ServiceLayout, files: Sequence[Path]) -> Command:
        """Run kafka.Kafka."""
        return Command([*self._java(node, files), "kafka.Kafka", str(node.folder / "server.properties")])

    def is_ready(self, node: NodePlan, layout: ServiceLayout) -> bool:
        """Ask for the metadata: the broker is ready when it lists itself."""
        return node.number in kafka_brokers((node.host, node.ports["client"]))

    def url(self, node: NodePlan) -> str:
        """Return the URL that Headrace's settings use."""
        return f"kafka://{node.at('client')}"

    def _java(self, node: NodePlan, files: Sequence[Path]) -> list[str]:
        log4j = f"-Dlog4j2.configurationFile={node.folder / 'log4j2.properties'}"
        return [str(find_java()), *JVM, private_tmp(node.folder), log4j, "-cp", ":".join(map(str, files))]

    def _format(self, node: NodePlan, layout: ServiceLayout, files: Sequence[Path]) -> None:
        config = str(node.folder / "server.properties")
        # With "=", because one id in 64 begins with "-" and would be taken for an option.
        tool = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id(layout.identity)}", "-c", config]
        done = subprocess.run([*self._java(node, files), *tool], capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServiceFailed(node.name, "its data folder could not be formatted", done.stdout + done.stderr)


def cluster_id(identity: str) -> str:
    """Return the layout's id in Kafka's form: 16 bytes in URL-safe base64."""
    return base64.urlsafe_b64encode(uuid.UUID(identity).bytes).decode().rstrip("=")


def server_properties(node: NodePlan, layout: ServiceLayout) -> dict[str, str]:
    """Return the broker's configuration; the caller's properties win."""
    copies = min(3, len(layout.nodes))
    in_sync = min(2, copies) if copies > 2 else 1
    voters = ",".join(f"{one.number}@{one.at('controller')}" for one in layout.nodes)
    replicated = {
        f"{topic}.{setting}": str(value)
        for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
        for setting, value in (("replication.factor", copies), ("min.isr", in_sync), ("num.partitions", 4))
        if (topic, setting) != ("offsets.topic", "min.isr")
    }
    return {
        "process.roles": "broker,controller",
        "node.id": str(node.number),
        "controller.quorum.voters": voters,
        "listeners": f"CLIENT://{node.at('client')},CONTROLLER://{node.at('controller')}",
        "advertised.listeners": f"CLIENT://{node.at('client')}",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "CLIENT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(node.data),
        "auto.create.topics.enable": "false",
        "default.replication.factor": str(copies),
        "min.insync.replicas": str(in_sync),
        **replicated,
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        "log.retention.check.interval.ms": "1000",
        "log.initial.task.delay.ms": "500",
        "log.segment.delete.delay.ms": "1000",
        "log.cleaner.backoff.ms": "500",
        "log.cleaner.dedupe.buffer.size": "4194304",
        "log.cleaner.threads": "1",
        "num.network.threads": "2",
        "num.io.threads": "4",
        **layout.properties,
    }
