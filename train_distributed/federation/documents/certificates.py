"""Keys and certificates of services; clients trust the very certificates that were agreed on.

A service makes one certificate, signed by its own key, for as long as a federation may live. Those
of all services are one file of the invitation, whose hash is agreed on. So there is no authority,
whose key could be lost or stolen.
"""

import datetime
import ipaddress
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from train_distributed.federation.documents.document import read_file, shown, write_secret

AGREED, SERVER, SERVER_KEY = "ca.pem", "server.pem", "server.key"
VALID = datetime.timedelta(days=5 * 365)  # longer than a federation lives
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
    x509.InvalidVersion,
)
T = TypeVar("T")


def write_certificate(folder: Path, hosts: list[str]) -> None:
    """Makes `server.pem`, for everyone, and its `server.key`.

    Args:
        folder: where to; made if it is not there.
        hosts: names and addresses under which parties reach the service.

    Raises:
        ValueError: something else than a name or an address.
        FileExistsError: there is a key already; it is never overwritten.
    """
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "federation service")])
    usage = dict.fromkeys(
        (
            *("key_cert_sign", "crl_sign", "content_commitment", "key_encipherment"),
            *("data_encipherment", "key_agreement", "encipher_only", "decipher_only"),
        ),
        False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - CLOCK)
        .not_valid_after(_now() + VALID)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(digital_signature=True, **usage), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
        )
        .sign(key, SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    folder.mkdir(parents=True, exist_ok=True)
    write_secret(folder / SERVER_KEY, secret)
    write_secret(folder / SERVER, certificate.public_bytes(Encoding.PEM))


def read_certificates(path: Path) -> list[x509.Certificate]:
    """All certificates of a file, each valid now.

    Raises:
        ValueError: none, one that has expired, or is not valid yet, as where this machine's clock
            is wrong.
    """
    content = read_file(path)
    found = _parsed(path, "certificates", lambda: x509.load_pem_x509_certificates(content))
    for certificate in found:
        _check_dates(path, certificate)
    return found


def trust(agreed: Path | None) -> ssl.SSLContext:
    """TLS that trusts the certificates in this file and no others; None: the system's authorities.

    Raises:
        ValueError: it holds none, or one that has expired.
    """
    if agreed is None:
        return ssl.create_default_context()
    read_certificates(agreed)
    try:
        return ssl.create_default_context(cafile=str(agreed))
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"{agreed} must hold certificates in PEM, got: {error}") from error


def serving(folder: Path, agreed: Path) -> ssl.SSLContext:
    """TLS of the service whose certificate and key are in this folder.

    Args:
        folder: with `server.pem` and `server.key`.
        agreed: file of the certificates that were agreed on.

    Raises:
        ValueError: naming the file that is missing, has expired or does not fit the others.
    """
    server = read_certificates(folder / SERVER)[0]
    read_file(folder / SERVER_KEY)
    if server not in read_certificates(agreed):
        raise ValueError(f"{folder / SERVER} must be agreed on in {agreed}, is not: {REMEDY}")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        tls.load_cert_chain(folder / SERVER, folder / SERVER_KEY, "")  # "": no passphrase is asked
    except ssl.SSLError as error:
        raise ValueError(f"{folder / SERVER_KEY} must be the key of {SERVER}: {error}") from error
    return tls


def valid_until(path: Path) -> datetime.datetime:
    """When the first certificate to expire of a file expires, even if it has.

    Raises:
        ValueError: no certificate.
    """
    content = read_file(path)
    dates = _parsed(
        path,
        "certificates with dates",
        lambda: [c.not_valid_after_utc for c in x509.load_pem_x509_certificates(content)],
    )
    return min(dates)


def _parsed(path: Path, rule: str, parse: Callable[[], T]) -> T:
    """Parses a file; raises ValueError naming file and rule for what the library cannot read."""
    try:
        return parse()
    except _UNREADABLE as error:
        words = shown(" ".join(str(error).split()))[:200] or type(error).__name__
        raise ValueError(f"{path} must be {rule}, got: {words}") from error


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not HOST.fullmatch(host):
        raise ValueError(f"hosts must be names or addresses without a port, got {host[:300]!r}")
    return x509.DNSName(host)


def _check_dates(path: Path, certificate: x509.Certificate) -> None:
    start, end = _parsed(
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


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
