"""A schema registry, Apicurio, which also speaks the protocol of Confluent's registry."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from headrace.services.fetch import tar_of, unpack
from headrace.services.java import find_java, private_tmp
from headrace.services.packages import Cache, locked
from headrace.services.ports import Command, NodePlan, ServiceLayout
from headrace.services.probes import http_answers
from headrace.services.watcher import Watcher

__all__ = ["RegistryService"]

CONFLUENT_API = "/apis/ccompat/v7"
JVM = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData")


class RegistryService:
    """One registry that keeps its schemas in memory; `properties` become environment variables."""

    name = "registry"
    roles: Sequence[str] = ("client",)
    most_nodes = 1
    timeout_s = 120.0
    is_seeded = False
    stop_signal = signal.SIGTERM
    grace_s = 5.0

    def install(self, cache: Cache, watcher: Watcher) -> Sequence[Path]:
        """Fetch and unpack the distribution."""
        find_java()
        (package,) = locked(self.name)
        return [unpack(self.name, package, tar_of, cache=cache, watcher=watcher)]

    def host(self, number: int) -> str:
        """Loopback."""
        return "127.0.0.1"

    def prepare(self, node: NodePlan, layout: ServiceLayout, files: Sequence[Path]) -> None:
        """Do nothing: the server is configured by its environment."""

    def command(self, node: NodePlan, layout: ServiceLayout, files: Sequence[Path]) -> Command:
        """Run the runner jar."""
        (runner,) = files[0].glob("*-runner.jar")
        settings = {
            "QUARKUS_HTTP_HOST": node.host,
            "QUARKUS_HTTP_PORT": str(node.ports["client"]),
            "QUARKUS_BANNER_ENABLED": "false",
            **layout.properties,
        }
        return Command([str(find_java()), *JVM, private_tmp(node.folder), "-jar", str(runner)], env=settings)

    def is_ready(self, node: NodePlan, layout: ServiceLayout) -> bool:
        """Ask for the list of subjects."""
        return http_answers(f"{self.url(node)}/subjects")

    def url(self, node: NodePlan) -> str:
        """Return the base URL for clients of Confluent's registry."""
        return f"http://{node.at('client')}{CONFLUENT_API}"
