"""How a command's connections are secured: the client's properties that `--command-config` names.

The file has Kafka's names (`security.protocol`, `ssl.…`, `sasl.…`), as the file of the same option of Kafka's tools.
Properties that don't concern security are left to those tools.

The Kafka client's own SCRAM prepares names and passwords in another way than Kafka does, and has no delegation tokens.
So Ottla's own exchanges log in within the Kafka client. Its report of a refused login is a time-out, so a command first
logs in once by Ottla's connection, whose error says what the broker answered.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.cli.errors import CommandError, ExitCode, UsageError
from ottla.protocol.sasl import ClientExchange, LoginRefused
from ottla.security.client_settings import PROPERTIES, client_security
from ottla.security.preparation import PreparedSecurity, begin_login, prepared
from ottla.settings.properties import parse_properties

if TYPE_CHECKING:
    from ottla.net.logging_in import BeginLogin
    from ottla.security.client_login import ClientLogin

_SECURITY = ("security.", "ssl.", "sasl.")


def read_command_config(path: Path) -> PreparedSecurity:
    """The security in a file of client properties. Raises UsageError for properties that can't be used, CommandError
    for a file that can't be read."""
    try:
        properties = parse_properties(path.read_text(encoding="utf-8"))
        security = client_security(properties)
        unknown = [name for name in properties if name.startswith(_SECURITY) and name not in PROPERTIES]
        if unknown:
            raise UsageError(f"{path}: ottla doesn't have the property {unknown[0]}", "Remove it from the file.")
        return prepared(security)
    except OSError as error:
        raise CommandError(f"can't read {path}: {error.strerror}", "See --command-config.") from error
    except ValueError as error:  # also UnicodeDecodeError and InvalidTls
        raise UsageError(f"{path}: {error}") from None


def try_login(address: tuple[str, int], security: PreparedSecurity, timeout_s: float) -> None:
    """Logs in at a broker once. Raises CommandError if the broker refuses the login; if the broker doesn't answer, the
    Kafka client's own attempts will show it."""
    from ottla.net.blocking import Connection, ConnectionLost, UnsupportedVersion
    from ottla.net.names import Address

    login = security.settings.login
    if login is None:
        return
    try:
        Connection(
            Address(*address), "ottla-cli", timeout_s=timeout_s, connect_timeout_s=timeout_s, security=security
        ).close()
    except LoginRefused as refused:
        raise login_refused(*address, login, refused) from refused
    except (ConnectionLost, UnsupportedVersion):
        return


def login_refused(host: str, port: int, login: ClientLogin, refused: LoginRefused) -> CommandError:
    """The error for a login that a broker refuses."""
    return CommandError(
        f"the login at {host}:{port} by {login.mechanism} failed: {refused}",
        "Check sasl.mechanism and sasl.jaas.config in the file of --command-config.",
        ExitCode.failed,
    )


def client_settings(security: PreparedSecurity) -> dict[str, Any]:
    """The settings of the Kafka client for this security."""
    settings: dict[str, Any] = {"security_protocol": security.settings.protocol}
    if security.tls is not None:
        settings["ssl_context"] = security.tls
    if security.settings.login is not None:
        from kafka.net.sasl import register_sasl_mechanism

        mechanism = security.settings.login.mechanism
        begin = begin_login(security.settings.login)
        register_sasl_mechanism(mechanism, partial(_Mechanism, begin), overwrite=True)
        settings["sasl_mechanism"] = mechanism
    return settings


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
