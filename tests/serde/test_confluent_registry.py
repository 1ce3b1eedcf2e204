"""The HTTP registry beyond the exam: TLS, passwords, servers that refuse or are gone, clients that don't ask us."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import ipaddress
import ssl
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka.schema_registry import Schema as TheirSchema
from confluent_kafka.schema_registry import SchemaRegistryClient
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from headrace.config import HttpRegistrySettings, RegistrySettings
from headrace.errors import BadSchema, Forbidden, IncompatibleSchema, Unreachable
from headrace.serde import Level, Registry, open_registry
from headrace.services import RunningService
from headrace.testing.conformance.registry_setting import new_subject, record

pytestmark = pytest.mark.servers

USER, PASSWORD = "ann", "se:cret"


class Guard(ThreadingHTTPServer):
    """A TLS front of the registry that lets in who knows the password, as deployments have them."""

    daemon_threads = True

    def __init__(self, behind: str, context: ssl.SSLContext) -> None:
        super().__init__(("127.0.0.1", 0), GuardedRequest)
        self.behind = behind.split("/apis")[0]
        self.socket = context.wrap_socket(self.socket, server_side=True)

    def handle_error(self, *_: Any) -> None:
        """A client that does not trust us hangs up: that is the test."""


class GuardedRequest(BaseHTTPRequestHandler):
    """Checks the password and passes the request on."""

    server: Guard

    def _pass_on(self) -> None:
        wanted = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.headers.get("authorization") != wanted:
            return self._answer(401, b'{"error_code": 401, "message": "who are you?"}')
        kept = {"content-type": self.headers.get("content-type", "application/json")}
        answer = httpx.request(self.command, self.server.behind + self.path, content=body, headers=kept)
        return self._answer(answer.status_code, answer.content)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = _pass_on  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for 127.0.0.1 that trusts itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "registry under test")])
    now = dt.datetime.now(dt.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate, key_file = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return certificate, key_file


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    return make_certificate(tmp_path)


@contextlib.contextmanager
def guarding(registry: RunningService, context: ssl.SSLContext) -> Iterator[str]:
    """Put a guard before the registry; yields its address."""
    server = Guard(registry.url, context)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}/apis/ccompat/v7"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def guard(registry: RunningService, certificate: tuple[Path, Path]) -> Iterator[str]:
    """Return the address of the guarded registry."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with guarding(registry, context) as address:
        yield address


async def opened(address: str, **http: Any) -> Registry:
    return await open_registry(address, settings=RegistrySettings(http=HttpRegistrySettings(retries=0, **http)))


async def test_tls_and_a_password_are_settings(guard: str, certificate: tuple[Path, Path]) -> None:
    """V5: with the certificate to trust and the right password a schema is registered and found."""
    registry = await opened(guard, ca_location=str(certificate[0]), username=USER, password=PASSWORD)
    made = await registry.register(subject := new_subject(), record(id="string"))
    assert list(await registry.versions(subject)) == [made]
    await registry.close()


async def test_a_wrong_password_is_forbidden(guard: str, certificate: tuple[Path, Path]) -> None:
    """V5: a refusal, not a retry; the password is in no message."""
    registry = await opened(guard, ca_location=str(certificate[0]), username=USER, password="wrong")
    with pytest.raises(Forbidden, match="401") as refused:
        await registry.register(new_subject(), record(id="string"))
    assert "wrong" not in str(refused.value)
    await registry.close()


async def test_a_server_we_do_not_trust_is_not_used(guard: str, tmp_path: Path) -> None:
    """V5: another certificate than the one to trust: the connection fails before anything is sent."""
    (tmp_path / "other").mkdir()
    other, _ = make_certificate(tmp_path / "other")
    registry = await opened(guard, ca_location=str(other), username=USER, password=PASSWORD)
    with pytest.raises(Unreachable, match=r"(?i)certificate"):
        await registry.subjects()
    await registry.close()


async def test_a_server_wants_our_certificate_too(
    registry: RunningService, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    """V5: mutual TLS: who shows the certificate that the server knows is let in, others are not."""
    (tmp_path / "ours").mkdir()
    ours, key = make_certificate(tmp_path / "ours")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    context.load_verify_locations(ours)
    context.verify_mode = ssl.CERT_REQUIRED
    known = {"ca_location": str(certificate[0]), "username": USER, "password": PASSWORD}
    with guarding(registry, context) as address:
        shown = await opened(address, certificate_location=str(ours), key_location=str(key), **known)
        made = await shown.register(subject := new_subject(), record(id="string"))
        assert list(await shown.versions(subject)) == [made]
        await shown.close()
        stranger = await opened(address, **known)
        with pytest.raises(Unreachable):
            await stranger.subjects()
        await stranger.close()


async def test_a_server_that_is_gone_is_unreachable() -> None:
    """V5: an error to retry on, with the address. What only reads has done nothing, and the error says so."""
    registry = await opened("http://127.0.0.1:1")
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1") as failed:
        await registry.subjects()
    assert failed.value.outcome_known
    with pytest.raises(Unreachable) as failed:
        await registry.levels.put(new_subject(), Level.NONE)
    assert not failed.value.outcome_known
    await registry.close()


async def test_the_server_holds_back_clients_that_do_not_ask_us(registry: RunningService) -> None:
    """V4: a subject made here carries our level on the server, so other clients can't break it either."""
    ours = await open_registry(registry.url)
    subject = new_subject()
    await ours.register(subject, record(id="string"))
    with SchemaRegistryClient({"url": registry.url}) as theirs:
        assert theirs.get_compatibility(subject) == "FULL_TRANSITIVE"
        with pytest.raises(Exception, match="409"):
            theirs.register_schema(subject, TheirSchema(record(id="long").text, "AVRO"))
    await ours.close()


async def test_what_others_registered_counts(registry: RunningService) -> None:
    """V4, V5: versions of other clients are seen at the next registration, with the level that they chose."""
    ours = await open_registry(registry.url)
    subject = new_subject()
    with SchemaRegistryClient({"url": registry.url}) as theirs:
        known_as = theirs.register_schema(subject, TheirSchema(record(id="string").text, "AVRO"))
        theirs.set_compatibility(subject, "BACKWARD")
    assert await ours.levels.get(subject) is Level.BACKWARD
    assert (await ours.register(subject, record(id="string"))).schema_id == known_as
    with pytest.raises(IncompatibleSchema, match="BACKWARD compatible"):
        await ours.register(subject, record(id="string", x="long"))
    await ours.close()


async def test_schemas_of_another_kind_are_told(registry: RunningService) -> None:
    """V1: an id of a JSON schema is no Avro, and says so."""
    ours = await open_registry(registry.url)
    text = '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}'
    with SchemaRegistryClient({"url": registry.url}) as theirs:
        known_as = theirs.register_schema(f"json-{uuid.uuid4().hex}", TheirSchema(text, "JSON"))
    with pytest.raises(BadSchema, match="JSON, not Avro"):
        await ours.schema(known_as)
    await ours.close()
