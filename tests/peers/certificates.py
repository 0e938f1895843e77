"""Certificates for tests: an authority, and what it issues, as PEM files in a folder."""

from __future__ import annotations

import datetime
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
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


def certificate(path: Path) -> bytes:
    """The DER of the first certificate in a PEM file."""
    return x509.load_pem_x509_certificates(path.read_bytes())[0].public_bytes(Encoding.DER)
