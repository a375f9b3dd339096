"""A certificate authority that a test makes itself, and a server behind TLS."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    builder = x509.CertificateBuilder().subject_name(_name(subject)).issuer_name(_name(issuer))
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - day).not_valid_after(now + day)


class Authority:
    """`file` is what a client must trust; `context` is for a server on 127.0.0.1 and as `names`."""

    def __init__(self, folder: Path, *names: str) -> None:
        own, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        root = (
            _builder("a test's authority", "a test's authority", own)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(own, hashes.SHA256())
        )
        alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
        alternatives.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        certificate = (
            _builder("a test's server", "a test's authority", key)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .sign(own, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        self.file = folder / "authority.pem"
        self.file.write_bytes(root.public_bytes(pem))
        server = folder / "server.pem"
        form = serialization.PrivateFormat.PKCS8
        server.write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()) + certificate.public_bytes(pem))
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.load_cert_chain(server)
