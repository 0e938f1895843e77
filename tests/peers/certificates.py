"""Certificates for tests: an authority, and what it issues, as PEM files in a folder."""

from __future__ import annotations

import datetime
from pathlib import Path

import trustme


class Authority:
    """A certificate authority whose files lie in `folder`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.ca = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self.trust = folder / "ca.pem"
        self.ca.cert_pem.write_to_path(str(self.trust))

    def issue(
        self, name: str, *hosts: str, common_name: str | None = None, expired: bool = False, file: str | None = None
    ) -> Path:
        """A PEM file with a new key and its certificates. Without `hosts` the certificate is valid for 127.0.0.1 and
        localhost."""
        not_after = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1) if expired else None
        issued = self.ca.issue_cert(
            *(hosts or ("127.0.0.1", "localhost")),
            common_name=common_name,
            not_after=not_after,
            key_type=trustme.KeyType.ECDSA,
        )
        path = self.folder / (file or f"{name}.pem")
        written = path.with_suffix(".new")
        issued.private_key_and_cert_chain_pem.write_to_path(str(written))
        written.replace(path)
        return path
