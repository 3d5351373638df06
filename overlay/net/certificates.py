"""Certificates of a cluster: one authority, a certificate for each node, and some for clients.

    make_ca(folder)                                           # ca.crt, ca.key
    make_node_certificate(folder, "warsaw-1", ["10.0.0.7"])   # warsaw-1.crt, warsaw-1.key
    make_client_certificate(folder, "reports")                # reports.crt, reports.key

A node's certificate names the node, as the URI `m4cast:node:<name>`, and the host names and addresses of its door; a
client's has `m4cast:client:<name>` and cannot be used as a node's. Keys are EC P-256, in files that only their owner
can read. An existing file is not overwritten unless that is requested.
"""

import ipaddress
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from m4cast.overlay.errors import M4castError

CA_NAME = "ca"
CA_DAYS = 3_650
DAYS = 825
"""The default validity of a certificate."""
CLOCK_SKEW = timedelta(minutes=5)
"""The validity of a new certificate begins this long ago, for hosts whose clocks are slow."""
LOCAL = ("localhost", "127.0.0.1")
URI_PREFIX = "m4cast:"

Kind = Literal["ca", "node", "client", "other"]


@dataclass(frozen=True, slots=True)
class Pair:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Facts:
    """The contents of a certificate. `name` is empty when it is not one of ours."""

    kind: Kind
    name: str
    issuer: str
    not_before: datetime
    not_after: datetime
    addresses: tuple[str, ...]
    sha256: str


# ---- making


def make_ca(folder: Path, *, days: int = CA_DAYS, force: bool = False) -> Pair:
    """Make a new authority: whoever has its key decides who is in the cluster."""
    pair = _pair(folder, CA_NAME, force)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject("m4cast cluster CA")
    builder = _builder(subject, subject, key, days).add_extension(x509.BasicConstraints(True, 0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    _write(pair, builder.sign(key, hashes.SHA256()), key)
    return pair


def make_node_certificate(
    folder: Path, name: str, addresses: Iterable[str] = (), *, days: int = DAYS, force: bool = False
) -> Pair:
    """Make a certificate for the node of that name, whose door clients reach at these hosts, and at localhost."""
    if not re.fullmatch("[a-z0-9-]{1,32}", name):
        raise M4castError(f"a node cannot be called {name!r}: use 1 to 32 of a-z, 0-9 and -")
    hosts = tuple(dict.fromkeys((*LOCAL, *addresses)))
    return _make(folder, name, "node", [_host(host) for host in hosts], days, force)


def make_client_certificate(folder: Path, name: str, *, days: int = DAYS, force: bool = False) -> Pair:
    """Make a certificate for clients of doors that have no tokens."""
    if not re.fullmatch("[A-Za-z0-9._@-]{1,64}", name) or name.startswith("."):
        raise M4castError(f"a client cannot be called {name!r}: use 1 to 64 letters, digits and . _ @ -")
    return _make(folder, name, "client", [], days, force)


def _make(
    folder: Path, name: str, kind: Literal["node", "client"], hosts: list[x509.GeneralName], days: int, force: bool
) -> Pair:
    if name == CA_NAME:
        raise M4castError(f"{name!r} is the authority's own name: choose another")
    ca, ca_key = _load_ca(folder)
    pair = _pair(folder, name, force)
    key = ec.generate_private_key(ec.SECP256R1())
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if kind == "node":
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
    alternatives = [x509.UniformResourceIdentifier(f"{URI_PREFIX}{kind}:{name}"), *hosts]
    builder = (
        _builder(_subject(name), ca.subject, key, days)
        .add_extension(x509.BasicConstraints(False, None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
    )
    _write(pair, builder.sign(ca_key, hashes.SHA256()), key)
    return pair


def _load_ca(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    pair = Pair(folder / f"{CA_NAME}.crt", folder / f"{CA_NAME}.key")
    if not pair.certificate.exists() or not pair.key.exists():
        raise M4castError(f"{folder} has no ca.crt and ca.key: make them with `m4cast certs ca --dir {folder}`")
    try:
        key = load_pem_private_key(pair.key.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise M4castError(f"{pair.key}: is not a readable key: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise M4castError(f"{pair.key}: is not an EC key: make the authority with `m4cast certs ca`")
    return _load(pair.certificate), key


def _pair(folder: Path, name: str, force: bool) -> Pair:
    pair = Pair(folder / f"{name}.crt", folder / f"{name}.key")
    for path in (pair.certificate, pair.key):
        if path.exists() and not force:
            raise M4castError(f"{path} exists already: nothing was changed; --force replaces it")
    return pair


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    if not re.fullmatch(r"[A-Za-z0-9*_.-]{1,253}", host):
        raise M4castError(
            f"{host!r} is neither a host name nor an IP address: give one without a port, such as node1.example.com"
        )
    return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    end = now + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, end) - CLOCK_SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
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


def _write(pair: Pair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    """Each file is written whole or not at all. A node that reads between the two finds a pair that does not match, and
    keeps its old one."""
    try:
        pair.key.parent.mkdir(parents=True, exist_ok=True)
        written_key = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        for path, content, mode in (
            (pair.key, written_key, 0o600),
            (pair.certificate, certificate.public_bytes(Encoding.PEM), 0o644),
        ):
            new = path.with_name(path.name + ".new")
            new.unlink(missing_ok=True)
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(content)
            new.replace(path)
    except OSError as error:
        raise M4castError(f"{error.filename}: cannot be written: {error.strerror}") from error


# ---- reading


def facts_of(path: Path) -> Facts:
    """The contents of the first certificate in a file."""
    certificate = _load(path)
    kind, name, addresses = _names(certificate)
    return Facts(
        kind=kind,
        name=name,
        issuer=certificate.issuer.rfc4514_string(),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        addresses=addresses,
        sha256=certificate.fingerprint(hashes.SHA256()).hex(),
    )


def _load(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise M4castError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise M4castError(f"{path}: is not a certificate in PEM: {error}") from error


def _names(certificate: x509.Certificate) -> tuple[Kind, str, tuple[str, ...]]:
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        if constraints.ca:
            return "ca", certificate.subject.rfc4514_string(), ()
    except x509.ExtensionNotFound:
        pass
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return "other", "", ()
    addresses = (
        *names.get_values_for_type(x509.DNSName),
        *(str(address) for address in names.get_values_for_type(x509.IPAddress)),
    )
    for uri in names.get_values_for_type(x509.UniformResourceIdentifier):
        for kind in ("node", "client"):
            if uri.startswith(f"{URI_PREFIX}{kind}:"):
                return kind, uri.removeprefix(f"{URI_PREFIX}{kind}:"), addresses
    return "other", "", addresses


def is_issued_by(certificate: bytes, authorities: Path) -> bool:
    """True if a certificate, in DER, was signed by one of the authorities in a file."""
    signed = x509.load_der_x509_certificate(certificate)
    for authority in x509.load_pem_x509_certificates(authorities.read_bytes()):
        try:
            signed.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return True
    return False
