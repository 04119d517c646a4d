"""The API server's certificate.

Clients send a token over TLS only, so the sandbox has a certificate of its
own, made at the first start, that kubeconfigs carry.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from drafter_sandbox.auth import write_private

_LIFE = timedelta(days=3650)
_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


def server_certificate(folder: Path) -> tuple[Path, Path]:
    """Return the files of the certificate and its key, made at the first call.

    The certificate signs itself, so it is also the authority that clients
    trust.
    """
    certificate, key = folder / "server.crt", folder / "server.key"
    if not (certificate.exists() and key.exists()):
        _make(certificate, key)
    return certificate, key


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the TLS settings of the server."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


def _make(certificate: Path, key_file: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "drafter-sandbox")])
    now = datetime.now(UTC)
    public = key.public_key()
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    alternatives: list[x509.GeneralName] = [x509.DNSName(text) for text in _NAMES]
    alternatives.append(x509.IPAddress(ip_address("127.0.0.1")))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_private(key_file, pem.decode())
    write_private(certificate, made.public_bytes(serialization.Encoding.PEM).decode())
