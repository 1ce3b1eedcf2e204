"""Apache Cassandra: nodes on 127.0.0.1, 127.0.0.2 and so on, with the same ports."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.services.fetch import fetch
from headrace.services.java import find_java, private_tmp
from headrace.services.packages import Cache, locked
from headrace.services.ports import Command, NodePlan, ServiceLayout
from headrace.services.probes import cassandra_peers
from headrace.services.watcher import Watcher

__all__ = ["Cassandra"]

NEWEST_JAVA = 17
JVM = ("-Xms512m", "-Xmx1g", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-ea")
EXPORTS = (
    "java.base/java.lang.ref",
    "java.base/jdk.internal.misc",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
    "jdk.unsupported/sun.misc",
)
OPENS = (
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.module",
    "java.base/java.lang.reflect",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.util.jar",
    "java.base/sun.nio.ch",
    "jdk.management/com.sun.management.internal",
)
LOGBACK = """\
<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{ISO8601} %level %logger{0}: %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="OUT"/></root>
</configuration>
"""


class Cassandra:
    """Nodes that don't wait for other nodes at the start, with small caches and no JMX port."""

    name = "cassandra"
    roles: Sequence[str] = ("client", "storage")
    most_nodes = 5
    timeout_s = 180.0
    is_seeded = True
    stop_signal = signal.SIGTERM
    grace_s = 10.0

    def install(self, cache: Cache, watcher: Watcher) -> Sequence[Path]:
        """Fetch the jars."""
        find_java(newest=NEWEST_JAVA)
        return fetch(self.name, locked(self.name), cache=cache, watcher=watcher)

    def host(self, number: int) -> str:
        """Give each node an address of its own: drivers know nodes by address."""
        return f"127.0.0.{number}"

    def prepare(self, node: NodePlan, layout: ServiceLayout, files: Sequence[Path]) -> None:
        """Write cassandra.yaml (JSON is YAML)."""
        (node.folder / "cassandra.yaml").write_text(json.dumps(cassandra_yaml(node, layout), indent=2))
        (node.folder / "logback.xml").write_text(LOGBACK)

    def command(self, node: NodePlan, layout: ServiceLayout, files: Sequence[Path]) -> Command:
        """Run CassandraDaemon."""
        (meter,) = (one for one in files if one.name.startswith("jamm-"))
        settings = {
            "cassandra.config": f"file://{node.folder / 'cassandra.yaml'}",
            "cassandra.storagedir": str(node.data),
            "cassandra.ring_delay_ms": "0",
            "cassandra.skip_wait_for_gossip_to_settle": "0",
            "cassandra.superuser_setup_delay_ms": "0",
            "cassandra-foreground": "yes",
            "jdk.attach.allowAttachSelf": "true",
            "java.awt.headless": "true",
            "java.net.preferIPv4Stack": "true",
            "logback.configurationFile": str(node.folder / "logback.xml"),
        }
        java = [str(find_java(newest=NEWEST_JAVA)), *JVM, private_tmp(node.folder), f"-javaagent:{meter}"]
        java += [f"--add-exports={package}=ALL-UNNAMED" for package in EXPORTS]
        java += [f"--add-opens={package}=ALL-UNNAMED" for package in OPENS]
        java += [f"-D{name}={value}" for name, value in settings.items()]
        return Command([*java, "-cp", ":".join(map(str, files)), "org.apache.cassandra.service.CassandraDaemon"])

    def is_ready(self, node: NodePlan, layout: ServiceLayout) -> bool:
        """Ask by CQL; nodes after the first are ready when they know all others, if they say so without a login."""
        known = cassandra_peers((node.host, node.ports["client"]))
        return node.number == 1 or known is None or known >= len(layout.nodes) - 1

    def url(self, node: NodePlan) -> str:
        """Return the URL that Headrace's settings use."""
        return f"cassandra://{node.at('client')}"


def cassandra_yaml(node: NodePlan, layout: ServiceLayout) -> dict[str, Any]:
    """Return the node's configuration; the caller's properties win, and tables among them are JSON."""
    # Every node is a seed, so that any of them can come back while any other is away.
    seeds = ",".join(one.at("storage") for one in layout.nodes)
    return {
        "cluster_name": f"headrace-{layout.identity}",
        "num_tokens": 4,
        "auto_bootstrap": False,
        "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
        "endpoint_snitch": "SimpleSnitch",
        "seed_provider": [
            {"class_name": "org.apache.cassandra.locator.SimpleSeedProvider", "parameters": [{"seeds": seeds}]}
        ],
        "listen_address": node.host,
        "rpc_address": node.host,
        "storage_port": node.ports["storage"],
        "native_transport_port": node.ports["client"],
        "data_file_directories": [str(node.data / "data")],
        "commitlog_directory": str(node.data / "commitlog"),
        "hints_directory": str(node.data / "hints"),
        "saved_caches_directory": str(node.data / "saved_caches"),
        "cdc_raw_directory": str(node.data / "cdc_raw"),
        "commitlog_sync": "periodic",
        "commitlog_sync_period": "1000ms",
        "commitlog_segment_size": "32MiB",  # half of it is the largest row, which must fit what journals may hold
        "commitlog_total_space": "128MiB",
        "memtable_heap_space": "64MiB",
        "memtable_offheap_space": "64MiB",
        "key_cache_size": "8MiB",
        "concurrent_compactors": 1,
        "concurrent_reads": 16,
        "concurrent_writes": 16,
        "auto_snapshot": False,
        "disk_optimization_strategy": "ssd",
        **{key: _plain(value) for key, value in layout.properties.items()},
    }


def _plain(value: str) -> Any:  # noqa: ANN401 - whatever stands in the file
    return json.loads(value) if value.startswith(("{", "[")) else value
