"""A self-signed certificate for a SuperLink on this machine, and keys for its sites.

Flower itself needs `cryptography`. A deployment makes its own (docs/how-to/flower.md).
"""

from __future__ import annotations

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

CERTIFICATE, KEY = "server.pem", "server.key"
DAYS = 30.0


def make_certificate(folder: Path, address: str) -> Path:
    """Writes server.pem, which is its own authority, and server.key.

    Args:
        folder: must exist.
        address: the server's IP address; `localhost` is valid too.

    Returns:
        The certificate's path.
    """
    key, now = ec.generate_private_key(ec.SECP384R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "autofedavg")])
    hosts = [x509.IPAddress(ipaddress.ip_address(address)), x509.DNSName("localhost")]
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .sign(key, hashes.SHA384())
    )
    path = folder / CERTIFICATE
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    _write_key(folder / KEY, key, serialization.PrivateFormat.PKCS8)
    return path


def make_site_key(path: Path) -> Path:
    """Writes a site's private key as `ssh-keygen -t ecdsa -b 384` does; returns the public one."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_key(path, key, serialization.PrivateFormat.OpenSSH)
    public = path.with_name(f"{path.name}.pub")
    openssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    public.write_bytes(key.public_key().public_bytes(*openssh))
    return public


def _write_key(
    path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat
) -> None:
    """Writes a key that only this user may read."""
    content = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
