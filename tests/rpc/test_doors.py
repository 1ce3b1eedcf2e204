"""Who may send commands over gRPC, and where: tokens, grants, certificates, addresses; and what a status tells."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from tests.cluster.test_transport import certificates
from tests.engine.models import bank_engine
from tests.gateway.test_hostile_tokens import hostile
from tests.gateway.test_security import Issuer, jwks_of
from tests.rpc.conftest import Serving
from tests.rpc.test_commands import kind_of, refused, sending
from tests.test_errors import LEAVES, sample
from typer.testing import CliRunner

from headrace.app import connect
from headrace.cli.main import app
from headrace.config import GrpcSettings, HeadraceSettings
from headrace.errors import BadArgument, Busy, GrpcListenFailed, GrpcUnprotected, InvalidSettings
from headrace.rpc import check_grpc_protected
from headrace.rpc.statuses import failed_message, is_reply, status_of


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    key, file = ed25519.Ed25519PrivateKey.generate(), tmp_path / "keys.json"
    file.write_text(jwks_of(k1=key))
    return Issuer(key, file)


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


async def test_a_token_opens_what_its_subject_and_roles_are_granted(serving: Serving, issuer: Issuer) -> None:
    """Nothing without a token or a grant, and nobody without one learns which engines there are."""
    grants = {"alice": ["command engine/bank"], "role:auditor": ["read engine/*"]}
    async with serving(jwt=issuer.settings(), grants=grants) as door, door.stub() as stub:
        alice, auditor = bearer(issuer.token()), bearer(issuer.token(sub="bob", roles=["auditor"]))
        read = door.client.engines.ReadRequest(engine="bank", aggregate="a")
        assert (await stub.Send(sending(door), metadata=alice)).success.version == 1
        assert (await stub.Read(read, metadata=auditor)).version == 1
        denied = [
            stub.Read(read, metadata=alice),
            stub.Send(sending(door), metadata=auditor),
            stub.Send(sending(door, engine="nobody"), metadata=alice),
            stub.Send(sending(door)),
        ]
        for call in denied:
            assert (await refused(call)).code() is grpc.StatusCode.PERMISSION_DENIED
        other = ed25519.Ed25519PrivateKey.generate()
        wrong = [issuer.token(exp=1), issuer.token(key=other), issuer.token(aud="other"), "", "x.y.z"]
        for token in wrong:
            error = await refused(stub.Send(sending(door), metadata=bearer(token)))
            assert (error.code(), kind_of(error)) == (grpc.StatusCode.UNAUTHENTICATED, "Unauthenticated")
        error = await refused(stub.Send(sending(door), metadata=(*alice, *alice)))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_no_hostile_token_passes(serving: Serving, issuer: Issuer) -> None:
    """Tokens made to deceive or to break the check are refused as such, and nothing is done."""
    seen: dict[str, grpc.StatusCode] = {}
    issuer.file.write_text(jwks_of(k1=issuer.key, k2=ed25519.Ed25519PrivateKey.generate()))
    async with serving(jwt=issuer.settings(), grants={"*": ["*"], "anonymous": ["*"]}) as door, door.stub() as stub:
        for name, token in hostile(issuer).items():
            error = await refused(stub.Send(sending(door), metadata=bearer(token)))
            if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
                seen[name] = error.code()
        assert seen == {}
        assert (await stub.Send(sending(door), metadata=bearer(issuer.token()))).success.version == 1


def _bytes_at(location: str | None) -> bytes:
    return Path(location or "").read_bytes()


async def test_commands_are_taken_over_tls(serving: Serving, tmp_path: Path) -> None:
    """A client that trusts the certificate is served; with a list of certificates it must show one of these, too."""
    ours = certificates(tmp_path, "ours")
    location = {"certificate_location": ours.certificate_location, "key_location": ours.key_location}
    trusted, key = (_bytes_at(location[name]) for name in ("certificate_location", "key_location"))
    shown = {"private_key": key, "certificate_chain": trusted}
    name = {"grpc.ssl_target_name_override": "nodes.example"}
    async with serving(tls=location) as door:
        async with door.stub(grpc.ssl_channel_credentials(trusted), **name) as stub:
            assert (await stub.Send(sending(door), timeout=20)).success.version == 1
        async with door.stub() as plain:
            assert (await refused(plain.Send(sending(door), timeout=20))).code() is grpc.StatusCode.UNAVAILABLE
    async with serving(tls={**location, "ca_location": ours.ca_location}) as door:
        async with door.stub(grpc.ssl_channel_credentials(trusted), **name) as stub:
            assert (await refused(stub.Send(sending(door), timeout=20))).code() is grpc.StatusCode.UNAVAILABLE
        async with door.stub(grpc.ssl_channel_credentials(trusted, **shown), **name) as stub:
            assert (await stub.Send(sending(door), timeout=20)).success.version == 2


def test_other_machines_are_not_served_without_authentication() -> None:
    """Only this machine's programs may send commands without a token, unless the settings say otherwise."""
    for listen in ("0.0.0.0:7070", "[::]:7070", "10.0.0.1:7070"):
        with pytest.raises(GrpcUnprotected, match=r"grpc\.allow_unauthenticated"):
            check_grpc_protected(GrpcSettings(listen=listen))
        check_grpc_protected(GrpcSettings(listen=listen, allow_unauthenticated=True))
    for listen in ("127.0.0.1:0", "[::1]:7070", "localhost:1"):
        check_grpc_protected(GrpcSettings(listen=listen))
    with pytest.raises(BadArgument, match=r"grpc\.listen"):
        check_grpc_protected(GrpcSettings(listen="7070"))


async def test_an_address_or_a_certificate_that_can_not_be_used_stops_the_start(serving: Serving) -> None:
    """The node does not run without the door that its settings ask for."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(GrpcListenFailed, match=r"grpc\.listen"):
            async with serving(listen=f"127.0.0.1:{taken.getsockname()[1]}"):
                pass
    with pytest.raises(InvalidSettings, match=r"grpc\.tls\.key_location"):
        async with serving(tls={"certificate_location": "missing.pem"}):
            pass


async def test_the_door_is_closed_unless_the_settings_open_it(tmp_path: Path) -> None:
    """By default a node takes no commands over gRPC."""
    settings = HeadraceSettings.model_validate({"log": {"embedded": {"fsync": False}}})
    async with connect(f"embedded:{tmp_path}", settings=settings) as hr, hr.node(bank_engine()) as node:
        assert node.grpc_address is None


@pytest.mark.parametrize("kind", LEAVES)
def test_no_status_is_told_for_what_may_have_been_done_and_nothing_internal_is_told(kind: type[Any]) -> None:
    """Whatever is raised: an unknown outcome is a reply, and sentences for operators stay in the log."""
    error = sample(kind)
    if "outcome_known" in {field.name for field in dataclasses.fields(kind)}:
        error.outcome_known = False  # type: ignore[attr-defined]
        assert is_reply(error)
        assert not failed_message(error).outcome_known
        assert str(error) not in failed_message(error).message
    else:
        status = status_of(error)
        assert status.code in grpc.StatusCode.__members__
        assert status.code != "OK"
        assert not status.is_hidden or str(error) not in status.message


def test_a_long_sentence_fits_into_a_status() -> None:
    """What a caller sent is part of the sentence; a header that is too long would break the connection."""
    assert len(status_of(BadArgument("x", "y" * 100_000, "z")).message) <= 1000
    assert status_of(ValueError("secret")).message == status_of(KeyError("other")).message
    assert "partition 3" not in status_of(Busy("partition 3", 1)).message


def test_a_node_without_engines_takes_no_commands() -> None:
    """`headrace node run --grpc` names the mistake."""
    done = CliRunner().invoke(app, ["node", "run", "examples.market.keyspaces:app", "--grpc", "127.0.0.1:0"])
    assert isinstance(done.exception, BadArgument)
    assert "--grpc" in str(done.exception)
