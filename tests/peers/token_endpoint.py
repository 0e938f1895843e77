"""The identity provider of librdkafka's own tests: a small web server that gives clients signed tokens.

It is a part of trivup, which lies as an archive beside librdkafka's tests, and runs in an environment of its own.
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from jwt.algorithms import RSAAlgorithm

from tests.peers.librdkafka_suite import runner
from tests.peers.tools import locked
from tests.peers.wire import free_port

AUDIENCE, SUBJECT = "api://default", "subject"  # of all its tokens
_LIBRARIES = ("jwcrypto==1.6.1", "requests")
_KEY_PASSWORD = "password-of-the-key"


@dataclass(frozen=True)
class TokenEndpoint:
    """A running provider, and the keys by which clients identify themselves in assertions."""

    url: str
    key: Path
    encrypted_key: Path

    @property
    def jwks(self) -> str:
        """The URL of the keys by which brokers check tokens."""
        return f"{self.url}/keys"

    def settings(self) -> dict[str, str]:
        """librdkafka's settings of a client that logs in by a token."""
        return {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "OIDC",
            "sasl.oauthbearer.client.id": "123",
            "sasl.oauthbearer.client.secret": "abc",
            "sasl.oauthbearer.scope": "test",
            "sasl.oauthbearer.extensions": "ExtensionworkloadIdentity=develC348S,Extensioncluster=lkc123",
            "sasl.oauthbearer.token.endpoint.url": f"{self.url}/retrieve",
        }

    def environment(self) -> dict[str, str]:
        """The variables that librdkafka's tests read."""
        return {
            "VALID_OIDC_URL": f"{self.url}/retrieve",
            "INVALID_OIDC_URL": f"{self.url}/retrieve/badformat",
            "EXPIRED_TOKEN_OIDC_URL": f"{self.url}/retrieve/expire",
            "OAUTHBEARER_CLIENT_PRIVATE_KEY": str(self.key),
            "OAUTHBEARER_CLIENT_PRIVATE_KEY_ENCRYPTED": str(self.encrypted_key),
            "OAUTHBEARER_CLIENT_PRIVATE_KEY_PASSWORD": _KEY_PASSWORD,
        }


@contextmanager
def token_endpoint(folder: Path) -> Iterator[TokenEndpoint]:
    """A provider that runs until the end, with its files in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    key = rsa.generate_private_key(65537, 2048)
    made = TokenEndpoint(f"http://localhost:{free_port()}", folder / "client.key", folder / "client.encrypted.key")
    secret = BestAvailableEncryption(_KEY_PASSWORD.encode())
    made.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    made.encrypted_key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret))
    public = folder / "client.jwk"
    public.write_text(RSAAlgorithm.to_jwk(key.public_key()))
    port = made.url.rpartition(":")[2]
    command = [str(_python()), "-m", "trivup.apps.OauthbearerOIDCApp", "--port", port, "--client-public-key"]
    with open(folder / "provider.log", "ab") as log:
        process = subprocess.Popen([*command, str(public)], stdout=log, stderr=log)
    try:
        _wait_for(made.jwks)
        yield made
    finally:
        process.kill()
        process.wait()


def _wait_for(url: str) -> None:
    """Waits until the URL is answered. Raises OSError if it isn't for a minute."""
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(url, timeout=10).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _python() -> Path:
    """The interpreter of the environment that has trivup."""
    (archive,) = (runner().parents[2] / "librdkafka/tests/trivup").glob("trivup-*.tar.gz")
    with locked(archive.name.removesuffix(".tar.gz")) as folder:
        python = folder / "venv/bin/python"
        if not (folder / ".done").exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True, timeout=120)
            install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*install, *_LIBRARIES], check=True, timeout=300)
            subprocess.run([*install, "--no-deps", str(archive)], check=True, timeout=300)
            (folder / ".done").touch()
    return python
