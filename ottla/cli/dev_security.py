"""What `ottla dev --secure` needs beside its brokers: certificates, users, and files for clients.

Everything lies in the folder `security` of the data directory, and is kept between starts: an authority, the brokers'
certificate and key (for all hosts under which the brokers are reached), and the passwords of two users. `broker` is the
brokers' own user, `admin` that of the person at the terminal; both are super users of the authorizer. Only the owner of
the folder may read what is secret, and no secret is an argument of a process.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.cli.client_file import properties_text, scram_login, write_private
from ottla.cli.errors import CommandError
from ottla.settings.properties import parse_properties

if TYPE_CHECKING:
    from ottla.operator.certificates import Secret

PROTOCOL = "SASL_SSL"
MECHANISM = "SCRAM-SHA-512"
ADMIN, BROKER = "admin", "broker"
_FOLDER = "security"
_AUTHORITY = "authority.crt"
_ITERATIONS = 8192


@dataclass(frozen=True)
class DevSecurity:
    """The secured side of an `ottla dev`: the settings of its brokers, which have secrets, and the clients' files."""

    broker_settings: Mapping[str, str]
    client_file: Path
    librdkafka_file: Path


def prepare(directory: Path, hosts: list[str], store: str) -> DevSecurity:
    """Makes what is missing in the data directory, and in the metadata store: certificates that are valid for `hosts`,
    passwords and users. Raises CommandError."""
    folder = directory / _FOLDER
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        _certify(folder, sorted({"localhost", "127.0.0.1", "::1", *hosts}))
        passwords = _passwords(folder)
    except OSError as error:
        raise CommandError(f"can't make the files of {folder}: {error.strerror}") from error
    _make_users(store, {name: passwords[name] for name in (BROKER, ADMIN)})
    authority = folder / _AUTHORITY
    security = DevSecurity(
        _broker_settings(folder, passwords), folder / "client.properties", folder / "librdkafka.conf"
    )
    client = {
        "security.protocol": PROTOCOL,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority),
        **scram_login(MECHANISM, ADMIN, passwords[ADMIN]),
    }
    librdkafka = {
        "security.protocol": PROTOCOL,
        "ssl.ca.location": str(authority),
        "sasl.mechanism": MECHANISM,
        "sasl.username": ADMIN,
        "sasl.password": passwords[ADMIN],
    }
    write_private(security.client_file, properties_text(client), replace=True)
    write_private(security.librdkafka_file, "".join(f"{k}={v}\n" for k, v in librdkafka.items()), replace=True)
    return security


def _broker_settings(folder: Path, passwords: Mapping[str, str]) -> dict[str, str]:
    login = scram_login(MECHANISM, BROKER, passwords[BROKER])["sasl.jaas.config"]
    return {
        "security.inter.broker.protocol": PROTOCOL,
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        f"listener.name.{PROTOCOL.lower()}.{MECHANISM.lower()}.sasl.jaas.config": login,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / _AUTHORITY),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{BROKER};User:{ADMIN}",
        "delegation.token.secret.key": passwords["delegation.token.secret.key"],
    }


def _passwords(folder: Path) -> dict[str, str]:
    path = folder / "passwords.properties"
    if not path.exists():
        made = {name: secrets.token_urlsafe(24) for name in (BROKER, ADMIN, "delegation.token.secret.key")}
        write_private(path, properties_text(made))
    return parse_properties(path.read_text(encoding="utf-8"))


def _certify(folder: Path, hosts: list[str]) -> None:
    """Makes the authority and the brokers' certificate, unless there are usable ones for these hosts."""
    from ottla.operator.certificates import CLIENT, SERVER, authority, issued, pair_in, usable

    now = datetime.now(UTC)
    certificate, key = folder / _AUTHORITY, folder / "authority.key"
    if not (certificate.exists() and key.exists()):
        made = authority("ottla dev", now)
        write_private(key, made["tls.key"].decode(), replace=True)
        certificate.write_bytes(made["tls.crt"])
    by: Secret = {"tls.crt": certificate.read_bytes(), "tls.key": key.read_bytes()}
    pair = folder / "broker.pem"
    present = pair_in(pair.read_bytes() if pair.exists() else b"")
    if not usable(by, present, now, hosts=hosts):
        renewed = issued(by, "ottla dev broker", now, hosts=hosts, purposes=(CLIENT, SERVER))
        write_private(pair, renewed.store.decode(), replace=True)


def _make_users(store: str, passwords: Mapping[str, str]) -> None:
    """Writes the users' credentials into the metadata store. A user whose password somebody has changed keeps the
    changed one."""
    from ottla.cli.metadata import run
    from ottla.cli.users import new_credential, write_credentials

    for name, password in passwords.items():
        credentials = {MECHANISM: new_credential(MECHANISM, password, _ITERATIONS)}
        run(write_credentials(store, None, None, name, credentials, replace=False, keep=True))
