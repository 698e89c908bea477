"""Keys and certificates of the operator's service; the authority that signs is kept."""

import datetime
import errno
import ipaddress
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from train_distributed.federation.documents.document import read_file, replace_secret, shown

CA, CA_KEY, SERVER, SERVER_KEY = "ca.pem", "ca.key", "server.pem", "server.key"
VALID = datetime.timedelta(days=5 * 365)  # both certificates: longer than a federation lives
REMEDY = "the operator makes a new federation by `federation init`"
CLOCK = datetime.timedelta(minutes=5)  # that parties' clocks may be behind the operator's
HOST = re.compile(r"(\*\.)?[A-Za-z0-9_\-]+(\.[A-Za-z0-9_\-]+)*\.?")
_UNREADABLE = (  # what the library may raise for a file that is not what it should be
    ValueError,
    TypeError,
    AssertionError,
    LookupError,
    ArithmeticError,
    NotImplementedError,
    UnsupportedAlgorithm,
    InvalidSignature,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.UnsupportedGeneralNameType,
)
T = TypeVar("T")


def write_certificates(folder: Path, hosts: list[str]) -> None:
    """`ca.pem` for everyone, its `ca.key`; `server.pem` and `server.key` for the operator.

    Args:
        folder: where to.
        hosts: names and addresses under which parties reach the operator.

    Raises:
        FileExistsError: there is an authority already.
    """
    if (folder / CA_KEY).exists():
        raise FileExistsError(errno.EEXIST, "an authority must not be replaced", folder / CA_KEY)
    certificate, authority = _write_authority(folder)
    _write_server(folder, certificate, authority, hosts)


def read_authority(path: Path) -> x509.Certificate:
    """A certificate that may sign others, valid now.

    Raises:
        ValueError: it is not, expired, or not valid yet, as where this machine's clock is wrong.
    """
    certificate = _certificate(path)
    found = _extension(path, certificate, x509.BasicConstraints)
    if not found.ca:
        raise ValueError(f"{path} must be an authority's certificate, is a server's")
    _check_dates(path, certificate)
    return certificate


def check_server(folder: Path) -> None:
    """Checks what the operator is to show: valid now, signed by ca.pem, with its own key.

    Raises:
        ValueError: naming the file that does not fit.
    """
    ca, server = read_authority(folder / CA), _certificate(folder / SERVER)
    _check_dates(folder / SERVER, server)
    path = folder / SERVER
    parsed(path, f"signed by {CA}", lambda: server.verify_directly_issued_by(ca))
    content = read_file(folder / SERVER_KEY)
    key = parsed(folder / SERVER_KEY, "a private key", lambda: load_pem_private_key(content, None))
    if key.public_key() != server.public_key():
        raise ValueError(f"{folder / SERVER_KEY} must be the key of {SERVER}, is another")


def valid_until(path: Path) -> datetime.datetime:
    """When a certificate expires.

    Raises:
        ValueError: no certificate.
    """
    certificate = _certificate(path)
    return parsed(path, "a certificate with dates", lambda: certificate.not_valid_after_utc)


def parsed(path: Path, rule: str, parse: Callable[[], T]) -> T:
    """Parses a file; what the library cannot read is refused by name.

    Raises:
        ValueError: naming file and rule.
    """
    try:
        return parse()
    except _UNREADABLE as error:
        words = shown(" ".join(str(error).split()))[:200] or type(error).__name__
        raise ValueError(f"{path} must be {rule}, got: {words}") from error


def _write_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    authority = ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "federation authority")])
    ca = _builder(issuer, issuer, authority.public_key(), _now() + VALID)
    ca = ca.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    ca = ca.add_extension(_usage(signs_certificates=True), critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    certificate = ca.add_extension(identifier, critical=False).sign(authority, SHA256())
    replace_secret(folder / CA_KEY, _private(authority))
    replace_secret(folder / CA, certificate.public_bytes(Encoding.PEM))
    return certificate, authority


def _write_server(
    folder: Path, ca: x509.Certificate, authority: ec.EllipticCurvePrivateKey, hosts: list[str]
) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "federation operator")])
    server = _builder(subject, ca.subject, key.public_key(), ca.not_valid_after_utc)
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    server = server.add_extension(names, critical=False)
    server = server.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    server = server.add_extension(_usage(signs_certificates=False), critical=True)
    purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    server = server.add_extension(purpose, critical=False)
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    server = server.add_extension(issuer_key, critical=False)
    signed = server.sign(authority, SHA256()).public_bytes(Encoding.PEM)
    replace_secret(folder / SERVER_KEY, _private(key))
    replace_secret(folder / SERVER, signed)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    until: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - CLOCK)
        .not_valid_after(until)
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
        pass
    if not HOST.fullmatch(host):
        raise ValueError(f"hosts must be names or addresses without a port, got {host[:300]!r}")
    return x509.DNSName(host)


def _certificate(path: Path) -> x509.Certificate:
    content = read_file(path)
    return parsed(path, "a certificate", lambda: x509.load_pem_x509_certificate(content))


def _extension(path: Path, certificate: x509.Certificate, kind: type[T]) -> T:
    name = kind.__name__
    extensions = parsed(path, f"a certificate with {name}", lambda: certificate.extensions)
    for extension in extensions:
        if isinstance(extension.value, kind):
            return extension.value
    raise ValueError(f"{path} must be a certificate with {name}, has none")


def _check_dates(path: Path, certificate: x509.Certificate) -> None:
    start, end = parsed(
        path,
        "a certificate with dates",
        lambda: (certificate.not_valid_before_utc, certificate.not_valid_after_utc),
    )
    if _now() > end:
        raise ValueError(f"{path} must be valid, expired on {end:%Y-%m-%d}: {REMEDY}")
    if _now() < start:
        raise ValueError(
            f"{path} must be valid already, is from {start:%Y-%m-%d %H:%M} UTC on, and this "
            f"machine's clock says {_now():%Y-%m-%d %H:%M} UTC: set the clock"
        )


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
