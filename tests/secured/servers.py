"""Kafka and Cassandra that want a login and speak TLS."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.secured.authority import Authority

from headrace.config import HeadraceSettings
from headrace.services import RunningService, start
from headrace.services.layouts import free_port

USER = "app"
SCRAM = "SCRAM-SHA-256"


def _secret(before: str = "", after: str = "") -> str:
    """Make a password whose middle can be looked for wherever it is quoted or escaped."""
    return f"{before}{secrets.token_hex(12)}{after}"


@dataclass(frozen=True)
class Secured:
    """Where the servers are and what opens them. `tokens` must be seen nowhere."""

    authority: Authority
    kafka: str
    mutual: str
    cassandra: RunningService
    client: tuple[Path, Path]
    scram: str = field(repr=False)
    plain: str = field(repr=False)
    login: str = field(repr=False)
    key_password: str = field(repr=False)

    @property
    def tokens(self) -> tuple[str, ...]:
        """What to look for: no way of writing a password changes these, nor what its parts are called."""
        return tuple(max(_words(text), key=len) for text in (self.scram, self.plain, self.login, self.key_password))

    @property
    def log(self) -> str:
        """The address of the listener that wants a login."""
        return f"kafka://{self.kafka}"

    def store(self, keyspace: str = "secured") -> str:
        """The address of the store."""
        return f"cassandra://{self.cassandra.address}/{keyspace}"

    def kafka_client(self, **changed: str) -> dict[str, str]:
        """Properties that log in; names are written with _ for dots."""
        own = {name.replace("_", "."): value for name, value in changed.items()}
        return {
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": SCRAM,
            "sasl.username": USER,
            "sasl.password": self.scram,
            "ssl.ca.location": str(self.authority.ca),
            **own,
        }

    def mutual_client(self) -> dict[str, str]:
        """Properties for the listener that wants a certificate."""
        certificate, key = self.client
        return {
            "security.protocol": "ssl",
            "ssl.ca.location": str(self.authority.ca),
            "ssl.certificate.location": str(certificate),
            "ssl.key.location": str(key),
            "ssl.key.password": self.key_password,
        }

    def cassandra_login(self, **changed: object) -> dict[str, Any]:
        """Settings that log in."""
        return {
            "username": USER,
            "password": self.login,
            "tls": True,
            "ca_location": str(self.authority.ca),
            **changed,
        }

    def settings(self) -> HeadraceSettings:
        """All of it."""
        return HeadraceSettings.model_validate(
            {
                "log": {"address": self.log, "kafka": {"client": self.kafka_client()}},
                "store": {"address": self.store(), "cassandra": self.cassandra_login()},
            }
        )


def _words(text: str) -> list[str]:
    return "".join(c if c in "0123456789abcdef" else " " for c in text).split()


@contextlib.contextmanager
def secured_servers(folder: Path) -> Iterator[Secured]:
    """Start both, at the same time."""
    authority = Authority(folder)
    key_password = _secret()
    taken: set[int] = set()
    ports = {role: free_port(["127.0.0.1"], taken=taken) for role in ("client", "controller", "sasl", "mutual")}
    scram, plain, login = _secret('p"a\\ss; =', "\nß€'"), _secret(), _secret('q"u\\o ', "'ß€")
    with ExitStack() as stack, ThreadPoolExecutor(2) as threads:
        kafka = threads.submit(_start_kafka, stack, authority, ports, plain=plain, scram=scram)
        cassandra = threads.submit(_start_cassandra, stack, authority, login)
        kafka.result()
        yield Secured(
            authority=authority,
            kafka=f"127.0.0.1:{ports['sasl']}",
            mutual=f"127.0.0.1:{ports['mutual']}",
            cassandra=cassandra.result(),
            client=authority.issue(USER, password=key_password.encode()),
            scram=scram,
            plain=plain,
            login=login,
            key_password=key_password,
        )


def _start_kafka(stack: ExitStack, authority: Authority, ports: dict[str, int], *, plain: str, scram: str) -> None:
    own = {role: ports[role] for role in ("client", "controller")}
    kafka = stack.enter_context(start("kafka", ports=own, properties=_kafka_properties(authority, ports, plain)))
    stack.callback(kafka.kill)  # nobody needs its data
    _add_scram(kafka.address, scram)


def _start_cassandra(stack: ExitStack, authority: Authority, login: str) -> RunningService:
    cassandra = stack.enter_context(start("cassandra", properties=_cassandra_properties(authority)))
    stack.callback(cassandra.kill)
    _add_role(cassandra.host, cassandra.port, login)
    return cassandra


def _kafka_properties(authority: Authority, ports: dict[str, int], plain: str) -> dict[str, str]:
    at = {role.upper(): f"{role.upper()}://127.0.0.1:{port}" for role, port in ports.items()}
    plain_login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    return {
        "listeners": ",".join(at.values()),
        "advertised.listeners": ",".join(each for role, each in at.items() if role != "CONTROLLER"),
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_SSL,MUTUAL:SSL",
        "listener.name.sasl.sasl.enabled.mechanisms": f"{SCRAM},PLAIN",
        "listener.name.sasl.scram-sha-256.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "listener.name.sasl.plain.sasl.jaas.config": f'{plain_login} user_{USER}="{plain}";',
        "listener.name.mutual.ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.keystore("broker")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.ca),
    }


def _cassandra_properties(authority: Authority) -> dict[str, str]:
    encryption = {
        "enabled": True,
        "optional": True,  # the one who waits for the server's start speaks no TLS
        "ssl_context_factory": {"class_name": "org.apache.cassandra.security.PEMBasedSslContextFactory"},
        "keystore": str(authority.keystore("node")),
    }
    return {"authenticator": "PasswordAuthenticator", "client_encryption_options": json.dumps(encryption)}


def _add_scram(address: str, password: str) -> None:
    from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

    admin = AdminClient({"bootstrap.servers": address})
    how = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    change = UserScramCredentialUpsertion(USER, how, password.encode())
    for done in admin.alter_user_scram_credentials([change]).values():
        done.result(30)


def _add_role(host: str, port: int, password: str) -> None:
    from cassandra import AuthenticationFailed
    from cassandra.auth import PlainTextAuthProvider
    from cassandra.cluster import Cluster, NoHostAvailable

    def create() -> None:
        cluster = Cluster(
            [host], port=port, auth_provider=PlainTextAuthProvider("cassandra", "cassandra"), protocol_version=4
        )
        try:
            quoted = password.replace("'", "''")
            cluster.connect().execute(f"CREATE ROLE IF NOT EXISTS {USER} WITH LOGIN = true AND PASSWORD = '{quoted}'")
        finally:
            cluster.shutdown()

    # The node makes its first role a while after it began to serve.
    _repeat(create, (NoHostAvailable, AuthenticationFailed))


def _repeat(action: Callable[[], None], errors: tuple[type[BaseException], ...], *, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return action()
        except errors:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
