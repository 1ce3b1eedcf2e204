"""An authority of certificates for the time of a test run."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


class Authority:
    """Signs certificates for servers on loopback, and for clients. Its own is in `ca`."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"headrace tests, {name}")])
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        self._certificate = self._signed(self._name, self._key.public_key(), (constraints, True))
        self.ca = folder / f"{name}.pem"
        self.ca.write_bytes(_pem(self._certificate))

    def issue(self, name: str, *, password: bytes | None = None) -> tuple[Path, Path]:
        """Return the files of a new certificate and its key (PKCS#8)."""
        key = ec.generate_private_key(ec.SECP256R1())
        loopback = [x509.DNSName("localhost")]
        loopback += [x509.IPAddress(ipaddress.ip_address(f"127.0.0.{n}")) for n in (1, 2, 3)]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._signed(subject, key.public_key(), (x509.SubjectAlternativeName(loopback), False))
        files = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        files[0].write_bytes(_pem(certificate))
        encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        form = serialization.PrivateFormat.PKCS8
        files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, encryption))
        return files

    def keystore(self, name: str) -> Path:
        """Return one file with a new key and its certificate, as servers of Java take it."""
        certificate, key = self.issue(name)
        both = self._folder / f"{name}.pem"
        both.write_bytes(key.read_bytes() + certificate.read_bytes())
        return both

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, extension: tuple[x509.ExtensionType, bool]
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(extension[0], critical=extension[1])
        )
        return builder.sign(self._key, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
