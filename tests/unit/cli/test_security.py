"""The client's properties that `--command-config` names."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from ottla.cli.errors import CommandError, UsageError
from ottla.cli.security import tls_of
from tests.peers.certificates import Authority


def properties(folder: Path, text: str) -> str:
    path = folder / "client.properties"
    path.write_text(text)
    return str(path)


def test_connections_are_plain_without_a_protocol(tmp_path: Path) -> None:
    assert tls_of(None) is None
    assert tls_of(properties(tmp_path, "bootstrap.servers=x:1\nsecurity.protocol=plaintext\n")) is None


def test_a_context_comes_from_the_stores(tmp_path: Path) -> None:
    trust = Authority(tmp_path).trust
    text = f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={trust}\nacks=all\n"
    context = tls_of(properties(tmp_path, text))
    assert context is not None
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("security.protocol=TLS", "security.protocol is TLS: it must be PLAINTEXT or SSL so far"),
        ("security.protocol=SSL\nssl.truststore.pasword=x", "ottla doesn't have the property ssl.truststore.pasword"),
        ("security.protocol=SSL\nssl.truststore.location=/none\nssl.truststore.type=PEM", "No such file"),
        ("security.protocol=SSL\nssl.keystore.password=geheim", "key store password is specified"),
    ],
)
def test_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        tls_of(properties(tmp_path, text))
    assert why in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="No such file"):
        tls_of(str(tmp_path / "none"))
