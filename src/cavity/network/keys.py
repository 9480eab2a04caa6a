"""The keys of a study: a certificate authority of its own, the server's certificate, and a key pair per client.

    ca.key            private key of the certificate authority: keep offline; needed to renew the server's certificate
    server/           for the server: its certificate and key, the authority's certificate, the clients' public keys
    clients/NAME/     for that client: its private key, the authority's and the server's certificates

With TLS no third party can read the traffic, and without a registered key none can connect. Both sides also sign what
they send, since other processes on the server's machine can start runs at Flower's SuperLink. The signature of a
message is checked in `cavity.network.protocol.decode`, by a function from here (`server_verifier`, `client_verifier`).
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization.ssh import SSHPrivateKeyTypes
from cryptography.x509.oid import NameOID

from cavity.errors import StudyError
from cavity.io.private_files import make_folder, private_file
from cavity.network.protocol import Sign, Verify
from cavity.study.schema import Study

DAYS = 730  # that the certificates are valid
AUTHORITY_NOTE = "private key of the certificate authority: keep offline"
_ECDSA = ec.ECDSA(hashes.SHA384())
AUTHORITY, CERTIFICATE, KEY, CLIENT_KEY = "ca.pem", "server.pem", "server.key", "client.key"
ALWAYS = ("localhost", "127.0.0.1")  # where the server connects to its own SuperLink


@dataclass(frozen=True)
class KeyFolder:
    """A folder or file of keys, and who gets it.

    Attributes:
        folder: its path.
        description: for whom it is, or what to do with it.
    """

    folder: Path
    description: str


def make_keys(study: Study, folder: Path, hosts: Sequence[str]) -> list[KeyFolder]:
    """Write all keys of a study.

    Args:
        study: whose clients get keys.
        folder: must not exist yet, so that no key in use is lost.
        hosts: names or addresses under which clients reach the server.

    Returns:
        Who gets which folder.
    """
    if folder.exists():
        raise StudyError(f"{folder}: already exists and may contain keys in use; choose another --output")
    make_folder(folder)
    make_folder(folder / "clients")
    make_folder(folder / "server")
    authority_key, authority = _authority(study)
    server_key = ec.generate_private_key(ec.SECP384R1())
    certificate = _certificate(study, authority_key, authority, server_key, [*ALWAYS, *hosts])
    server = folder / "server"
    _write(folder / "ca.key", _pem(authority_key))
    _write(server / AUTHORITY, authority.public_bytes(serialization.Encoding.PEM))
    _write(server / CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM))
    _write(server / KEY, _pem(server_key))
    folders = [KeyFolder(folder / "ca.key", AUTHORITY_NOTE), KeyFolder(server, "for the server")]
    for name in study.clients:
        key, own = ec.generate_private_key(ec.SECP384R1()), folder / "clients" / name
        _write(own / CLIENT_KEY, _openssh(key))
        _write(own / AUTHORITY, authority.public_bytes(serialization.Encoding.PEM))
        _write(own / CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM))
        _write(server / "clients" / f"{name}.pub", _public(key))
        folders.append(KeyFolder(own, f"for {name}"))
    return folders


def client_public_keys(server: Path, study: Study) -> dict[str, bytes]:
    """Client -> public key in PEM, from the server's folder of keys."""
    files = {name: server / "clients" / f"{name}.pub" for name in study.clients}
    if lacking := [name for name, file in files.items() if not file.is_file()]:
        raise StudyError(f"{server}: public key of {lacking[0]!r} not found; create the keys with `cavity study keys`")
    return {name: file.read_bytes() for name, file in files.items()}


def need(folder: Path, *names: str) -> None:
    """Raise StudyError if a folder of keys lacks a file."""
    for name in names:
        if not (folder / name).is_file():
            raise StudyError(
                f"{folder}: {name} not found; give your folder of keys, created by `cavity study keys`, with --keys"
            )


def _authority(study: Study) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key, name = ec.generate_private_key(ec.SECP384R1()), _name(f"Cavity study {study.id}")
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    return key, certificate


def _certificate(
    study: Study,
    authority_key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
) -> x509.Certificate:
    issuer = authority_key.public_key()
    return (
        _builder(_name(f"Cavity server {study.id}"), authority.subject, key.public_key())
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in dict.fromkeys(hosts)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)
        .sign(authority_key, hashes.SHA384())
    )


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read."""
    make_folder(path.parent)
    with open(path, "xb", opener=private_file) as file:
        file.write(content)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _openssh(key: ec.EllipticCurvePrivateKey) -> bytes:
    """In the format that Flower's nodes read."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )


def _public(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def server_signer(folder: Path) -> Sign:
    """Signs with the server's key."""
    return _signer(serialization.load_pem_private_key((folder / KEY).read_bytes(), None))


def client_signer(folder: Path) -> Sign:
    """Signs with a client's key."""
    return _signer(serialization.load_ssh_private_key((folder / CLIENT_KEY).read_bytes(), None))


def _signer(key: PrivateKeyTypes | SSHPrivateKeyTypes) -> Sign:
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return lambda content: key.sign(content, _ECDSA)


def server_verifier(folder: Path) -> Verify:
    """Checks signatures of the server, by its certificate in a client's folder."""
    key = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes()).public_key()
    return _verifier(key)


def client_verifier(public_key: bytes) -> Verify:
    """Checks signatures of a client."""
    return _verifier(serialization.load_pem_public_key(public_key))


def _verifier(key: PublicKeyTypes) -> Verify:
    assert isinstance(key, ec.EllipticCurvePublicKey)

    def verify(content: bytes, signature: bytes) -> bool:
        try:
            key.verify(signature, content, _ECDSA)
        except InvalidSignature:
            return False
        return True

    return verify
