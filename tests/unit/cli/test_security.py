"""The client's properties that `--command-config` names."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from ottla.cli.errors import CommandError, UsageError
from ottla.cli.security import client_settings, read_command_config
from ottla.security.jaas import PLAIN_MODULE
from tests.peers.certificates import Authority


def properties(folder: Path, text: str) -> Path:
    path = folder / "client.properties"
    path.write_text(text)
    return path


def test_connections_are_plain_without_a_protocol(tmp_path: Path) -> None:
    plain = read_command_config(properties(tmp_path, "bootstrap.servers=x:1\nsecurity.protocol=plaintext\n"))
    assert plain.tls is plain.begin_login is None


def test_a_context_comes_from_the_stores(tmp_path: Path) -> None:
    trust = Authority(tmp_path).trust
    text = f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={trust}\nacks=all\n"
    context = read_command_config(properties(tmp_path, text)).tls
    assert context is not None
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)


def test_a_login_stands_above_the_encryption(tmp_path: Path) -> None:
    trust = Authority(tmp_path).trust
    security = read_command_config(
        properties(
            tmp_path,
            f"security.protocol=SASL_SSL\nssl.truststore.type=PEM\nssl.truststore.location={trust}\n"
            f'sasl.mechanism=PLAIN\nsasl.jaas.config={PLAIN_MODULE} required username="a" password="geheim";\n',
        )
    )
    assert security.tls is not None
    assert security.begin_login is not None
    assert security.begin_login().mechanism == "PLAIN"
    assert "geheim" not in repr(security)
    settings = client_settings(security)
    assert (settings["security_protocol"], settings["sasl_mechanism"]) == ("SASL_SSL", "PLAIN")
    assert settings["ssl_context"] is security.tls


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("security.protocol=TLS", "security.protocol is 'TLS': it must be one of PLAINTEXT, SSL,"),
        ("security.protocol=SSL\nssl.truststore.pasword=x", "ottla doesn't have the property ssl.truststore.pasword"),
        ("security.protocol=SSL\nssl.truststore.location=/none\nssl.truststore.type=PEM", "No such file"),
        ("security.protocol=SSL\nssl.keystore.password=geheim", "key store password is specified"),
    ],
)
def test_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_command_config(properties(tmp_path, text))
    assert why in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="No such file"):
        read_command_config(tmp_path / "none")
