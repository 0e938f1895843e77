"""Logins of the `ottla` commands: at brokers by Ottla's own exchanges, also within the Kafka client.

The Kafka client's own SCRAM prepares names and passwords in another way than Kafka does, and has no delegation tokens.
Its own report of a refused login is a time-out, so a command first logs in once by Ottla's connection, whose error says
what the broker answered.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.cli.errors import CommandError, ExitCode, UsageError
from ottla.protocol.sasl import ClientExchange, LoginRefused
from ottla.security.begin_login import begin_login
from ottla.security.client_login import ClientLogin
from ottla.security.client_settings import ClientSecurity, client_security
from ottla.settings.properties import parse_properties

if TYPE_CHECKING:
    from ottla.net.logging_in import BeginLogin


def read_command_config(path: Path) -> ClientSecurity:
    """The security in a file of client properties, as Kafka's tools take it by `--command-config`. Raises
    UsageError."""
    try:
        return client_security(parse_properties(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror}") from error
    except ValueError as error:  # also UnicodeDecodeError
        raise UsageError(f"{path}: {error}") from None


def try_login(address: tuple[str, int], login: ClientLogin, timeout_s: float) -> None:
    """Logs in at a broker once. Raises CommandError if the broker refuses the login; if the broker doesn't answer, the
    Kafka client's own attempts will show it."""
    from ottla.net.blocking import Connection, ConnectionLost, UnsupportedVersion
    from ottla.net.names import Address

    try:
        Connection(
            Address(*address),
            "ottla-cli",
            timeout_s=timeout_s,
            connect_timeout_s=timeout_s,
            begin_login=begin_login(login),
        ).close()
    except LoginRefused as refused:
        raise CommandError(
            f"the login at {address[0]}:{address[1]} by {login.mechanism} failed: {refused}",
            "Check sasl.mechanism and sasl.jaas.config in the file of --command-config.",
            ExitCode.failed,
        ) from refused
    except (ConnectionLost, UnsupportedVersion):
        return


def client_settings(security: ClientSecurity) -> dict[str, Any]:
    """The settings of the Kafka client for this security."""
    if security.login is None:
        return {}
    from kafka.net.sasl import register_sasl_mechanism

    register_sasl_mechanism(security.login.mechanism, partial(_Mechanism, begin_login(security.login)), overwrite=True)
    return {"security_protocol": security.protocol, "sasl_mechanism": security.login.mechanism}


class _Mechanism:
    """A login in the form that the Kafka client asks for (kafka.net.sasl.abc.SaslMechanism)."""

    def __init__(self, begin: BeginLogin, **_settings: Any) -> None:
        self._exchange: ClientExchange = begin()
        self._message: bytes | None = self._exchange.first()

    def auth_bytes(self) -> bytes:
        assert self._message is not None
        return self._message

    def receive(self, challenge: bytes) -> None:
        self._message = self._exchange.next(challenge)

    def is_done(self) -> bool:
        return self._message is None

    def is_authenticated(self) -> bool:
        return self._message is None

    def auth_details(self) -> str:
        return f"logged in by {self._exchange.mechanism}"
