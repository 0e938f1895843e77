"""`ottla tokens` against a broker whose clients log in."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Ottla
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.wire import free_port

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


class Secured:
    """A broker with the users alice and bob, and with tokens."""

    def __init__(self, folder: Path) -> None:
        self.bootstrap = f"127.0.0.1:{free_port()}"
        inside = f"127.0.0.1:{free_port()}"
        addresses = f"CLIENTS://{self.bootstrap},INSIDE://{inside}"
        self.broker = OttlaBroker(
            folder,
            inside,
            listeners=addresses,
            advertised_listeners=addresses,
            listener_security_protocol_map="CLIENTS:SASL_PLAINTEXT,INSIDE:PLAINTEXT",
            inter_broker_listener_name="INSIDE",
            sasl_enabled_mechanisms="PLAIN,SCRAM-SHA-512",
            listener_name_clients_plain_sasl_jaas_config=f'{MODULE} required user_alice="alice-pw" user_bob="bob-pw";',
            delegation_token_secret_key="hush",
        )
        self.folder = folder

    def as_user(self, name: str) -> tuple[str, ...]:
        path = self.folder / f"{name}.properties"
        path.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={MODULE} required username="{name}" password="{name}-pw";\n'
            "ssl.keystore.location=own.jks\nssl.key.password=hush\n"
        )
        return ("-b", self.bootstrap, "--command-config", str(path))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("secured"))
    yield made
    made.broker.stop()


def test_a_token_logs_in_until_it_is_ended(ottla: Ottla, secured: Secured, tmp_path: Path) -> None:
    alice, bob = secured.as_user("alice"), secured.as_user("bob")
    file = tmp_path / "token.properties"
    options = ("--renewer", "User:bob", "--life", "2h", "--client-file", str(file))
    made = ottla("tokens", "create", *options, "--json", *alice)
    assert made.code == 0, made.stderr
    token = made.json["id"]
    assert (made.json["owner"], made.json["client_file"]) == ("User:alice", str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "hmac" not in made.json
    by_token = ("-b", secured.bootstrap, "--command-config", str(file))
    assert ottla("topics", "list", *by_token).code == 0
    assert "ssl.keystore" not in file.read_text()
    told = ottla("tokens", "create", "--client-file", str(tmp_path / "told"), *alice)
    assert "told has no ssl.key.password, ssl.keystore.location: the key is yours" in told.stderr
    count = len(ottla("tokens", "list", "--json", *alice).json)
    again = ottla("tokens", "create", "--client-file", str(file), *alice)
    assert (again.code, f"{file} exists already" in again.stderr) == (1, True)
    nowhere = ottla("tokens", "create", "--client-file", str(tmp_path / "no" / "file"), *alice)
    assert (nowhere.code, "can't write" in nowhere.stderr) == (1, True)
    assert len(ottla("tokens", "list", "--json", *alice).json) == count, "no token without a file"
    left = tmp_path / "left"
    refused = ottla("tokens", "create", "--owner", "User:x", "--life", "1s", "--client-file", str(left), *by_token)
    assert (refused.code, left.exists()) == (1, False)

    rows = {row["id"]: row for row in ottla("tokens", "list", "--owner", "User:alice", "--json", *bob).json}
    assert (rows[token]["owner"], rows[token]["renewers"]) == ("User:alice", ["User:bob"])
    assert "hmac" not in rows[token]
    renewed = ottla("tokens", "renew", token, "--for", "30m", "--json", *bob)
    assert renewed.json["expires"] < rows[token]["expires"]
    refused = ottla("tokens", "create", *by_token)
    assert (refused.code, "tokens are for users that are logged in" in refused.stderr) == (1, True)

    asked = ottla("tokens", "expire", token, *alice)
    assert (asked.code, "Say --yes" in asked.stderr) == (2, True)
    assert ottla("tokens", "expire", token, "--yes", *alice).stdout == f"Token {token} is ended.\n"
    failed = ottla("topics", "list", *by_token)
    assert (failed.code, "by SCRAM-SHA-512 failed" in failed.stderr) == (1, True)
    absent = ottla("tokens", "renew", token, *alice)
    assert (absent.code, f"there is no token '{token}' that you may see" in absent.stderr) == (4, True)


def test_a_hmac_is_shown_where_nothing_keeps_it(ottla: Ottla, secured: Secured) -> None:
    alice = secured.as_user("alice")
    made = ottla("tokens", "create", "--json", *alice).json
    shown = {row["id"]: row for row in ottla("tokens", "list", "--hmac", "--json", *alice).json}
    assert shown[made["id"]]["hmac"] == made["hmac"]
    later = ottla("tokens", "expire", made["id"], "--in", "5m", "--json", *alice)
    assert later.json["expires"] < made["expires"]
    lines = ottla("tokens", "list", *alice).stdout.splitlines()
    assert lines[0].split() == ["TOKEN", "OWNER", "REQUESTER", "RENEWERS", "EXPIRES", "ENDS"]
    assert made["hmac"] not in "".join(lines)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["create", "--owner", "bob"], "'bob' has no type. Write the type before a colon: User:bob."),
        (["create", "--life", "soon"], "'soon' is not a duration. Write 90s, 15m, 12h or 7d."),
        (["renew", "TOKEN", "--for", "-5m"], "'-5m' is not a duration"),
        (["expire", "TOKEN", "--in", "0s"], "'0s' is not a duration"),
    ],
)
def test_mistakes(ottla: Ottla, secured: Secured, arguments: list[str], sentence: str) -> None:
    alice = secured.as_user("alice")
    if "TOKEN" in arguments:
        token = ottla("tokens", "create", "--json", *alice).json["id"]
        arguments = [token if each == "TOKEN" else each for each in arguments]
    found = ottla("tokens", *arguments, *alice)
    assert (found.code, sentence in found.stderr) == (2, True)


def test_without_a_login_there_are_no_tokens(ottla: Ottla, secured: Secured) -> None:
    inside = secured.broker.bootstrap
    found = ottla("tokens", "create", "-b", inside)
    assert (found.code, "tokens are for users that are logged in" in found.stderr) == (1, True)
    refused = ottla("tokens", "list", "-b", secured.bootstrap, *secured.as_user("alice")[2:], "--owner", "User:nobody")
    assert (refused.code, refused.stderr) == (0, "There are no tokens. Make one: ottla tokens create\n")
