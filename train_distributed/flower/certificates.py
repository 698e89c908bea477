"""Keys and certificates in the formats that Flower reads."""

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = datetime.timedelta(days=365)


def write_secret(path: Path, content: bytes) -> None:
    """A new file that only its owner can read.

    Raises:
        FileExistsError: a secret is never overwritten.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def write_node_key(folder: Path) -> None:
    """`node-key` and `node-key.pub`: P-384, OpenSSH, as SuperNode authentication wants them."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    write_secret(folder / "node-key", private)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (folder / "node-key.pub").write_bytes(public + b"\n")


def write_certificates(folder: Path, hosts: list[str]) -> None:
    """`ca.pem` for everyone; `server.pem` and `server.key` for the SuperLink, valid for a year.

    Args:
        folder: where to.
        hosts: names and addresses under which nodes reach the SuperLink.
    """
    authority = ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "federation authority")])
    ca = _builder(issuer, issuer, authority.public_key())
    ca = ca.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    ca = ca.add_extension(_usage(signs_certificates=True), critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    ca = ca.add_extension(identifier, critical=False)
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    server = _builder(subject, issuer, key.public_key())
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    server = server.add_extension(names, critical=False)
    server = server.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    server = server.add_extension(_usage(signs_certificates=False), critical=True)
    purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    server = server.add_extension(purpose, critical=False)
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    server = server.add_extension(issuer_key, critical=False)
    (folder / "ca.pem").write_bytes(ca.sign(authority, SHA256()).public_bytes(Encoding.PEM))
    (folder / "server.pem").write_bytes(server.sign(authority, SHA256()).public_bytes(Encoding.PEM))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_secret(folder / "server.key", private)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + VALID)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
