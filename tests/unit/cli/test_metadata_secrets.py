"""What `ottla metadata` shows of values with secrets."""

from __future__ import annotations

import json

from ottla.cli.metadata import _described
from ottla.metadata import keys
from ottla.metadata.identities import ConfigResource
from ottla.metadata.model.settings import Config
from ottla.metadata.model.users import LoginSecret, ScramKeys, Token
from ottla.metadata.store import Entry

KEYS = ScramKeys(b"hush-salt", b"hush-stored", b"hush-server", 4096)
JAAS = "listener.name.in.plain.sasl.jaas.config"


def test_keys_and_passwords_are_hidden_and_the_rest_is_shown() -> None:
    values = {
        keys.scram("alice", "SCRAM-SHA-256"): KEYS,
        keys.token("id"): Token("User:alice", "User:alice", (), 1, 2, 3, {"SCRAM-SHA-256": KEYS}),
        keys.login_secret.key: LoginSecret(b"hush"),
        keys.config(ConfigResource("broker", "0")): Config({JAAS: "hush", "log.retention.ms": "7"}),
    }
    shown = {key: _described(Entry(key, value.encode(), 1, 1))["value"] for key, value in values.items()}
    assert shown["scram/SCRAM-SHA-256/alice"] == {
        "format": 1,
        "salt": "(hidden)",
        "stored_key": "(hidden)",
        "server_key": "(hidden)",
        "iterations": 4096,
    }
    assert shown["configs/broker/0"]["entries"] == {JAAS: "(hidden)", "log.retention.ms": "7"}
    assert shown["tokens/id"]["owner"] == "User:alice"
    text = json.dumps(shown)
    for key, value in values.items():
        for secret in ("hush", "aHVza"):  # also in base64
            assert secret not in text, key
        assert "hush" not in repr(value) or key.startswith("configs/")
