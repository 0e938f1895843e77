"""Certificates for tests: an authority, and what it issues, as PEM files in a folder."""

from __future__ import annotations

import datetime
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)


class Authority:
    """A certificate authority whose files lie in `folder`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ca = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self.trust = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.trust))

    def issue(self, name: str, *hosts: str, common_name: str | None = None, expired: bool = False) -> Path:
        """The file `name`.pem with a new key and its certificates, in place of an older one of this name. Without
        `hosts` the certificate is valid for 127.0.0.1 and localhost."""
        yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        issued = self._ca.issue_cert(
            *(hosts or ("127.0.0.1", "localhost")),
            common_name=common_name,
            organization_unit_name="tests",
            not_after=yesterday if expired else None,
            key_type=trustme.KeyType.ECDSA,
        )
        path = self._folder / f"{name}.pem"
        written = path.with_suffix(".new")
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        in_pkcs8 = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())  # Java reads no other format
        written.write_bytes(in_pkcs8 + b"".join(each.bytes() for each in issued.cert_chain_pems))
        written.replace(path)
        return path


def in_all_formats(path: Path, trust: Path, password: str) -> dict[str, Path]:
    """Writes a key and its certificate, which `issue` made, in the other formats that clients read: format → file,
    beside `path`. The formats are the key as `key.pem` (encrypted with the password) and `key.der` (PKCS#1 or SEC1,
    open), the certificate as `certificate.pem` and `certificate.der`, and both with the authority's as `p12`."""
    content, secret = path.read_bytes(), BestAvailableEncryption(password.encode())
    key, own = load_pem_private_key(content, None), x509.load_pem_x509_certificates(content)[0]
    authorities = x509.load_pem_x509_certificates(trust.read_bytes())
    assert isinstance(key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey)
    contents = {
        "key.pem": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret),
        "key.der": key.private_bytes(Encoding.DER, PrivateFormat.TraditionalOpenSSL, NoEncryption()),
        "certificate.pem": own.public_bytes(Encoding.PEM),
        "certificate.der": own.public_bytes(Encoding.DER),
        "p12": pkcs12.serialize_key_and_certificates(None, key, own, authorities, secret),
    }
    files = {name: path.with_suffix(f".{name}") for name in contents}
    for name, file in files.items():
        file.write_bytes(contents[name])
    return files


def certificate(path: Path) -> bytes:
    """The DER of the first certificate in a PEM file."""
    return x509.load_pem_x509_certificates(path.read_bytes())[0].public_bytes(Encoding.DER)
