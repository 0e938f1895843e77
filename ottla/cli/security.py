"""How a command's connections are secured: the client's properties that `--command-config` names.

The file has Kafka's names (`security.protocol`, `ssl.…`, `sasl.…`), as the file of the same option of Kafka's tools.
Properties that don't concern security are left to those tools.

The Kafka client's own SCRAM prepares names and passwords in another way than Kafka does, and has no delegation tokens.
So Ottla's own exchanges log in within the Kafka client. Its report of a refused login, or of a listener that wants
another protocol, is a time-out. So a command first connects once by Ottla's connection (`check_listener`), whose error
says what is wrong.
"""

from __future__ import annotations

import ssl
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.cli.errors import CommandError, ExitCode, UsageError
from ottla.net.streams import SPEAKS_TLS
from ottla.protocol.sasl import ClientExchange, LoginRefused
from ottla.security.client_settings import PROPERTIES, ClientSecurity, client_security
from ottla.security.preparation import PreparedSecurity, begin_login, prepared
from ottla.settings.properties import parse_properties

if TYPE_CHECKING:
    from ottla.net.blocking import ConnectionLost
    from ottla.net.logging_in import BeginLogin
    from ottla.security.client_login import ClientLogin

_SECURITY = ("security.", "ssl.", "sasl.")
_METADATA = 3
_REMEDY = "Check security.protocol and ssl.* in the file of --command-config."


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


def check_listener(
    address: tuple[str, int], through: tuple[str, int], security: PreparedSecurity | None, timeout_s: float
) -> None:
    """Connects to a broker once, logs in and makes a request that everybody may make. `through` is the address that
    leads to the broker's address. Raises CommandError where the client's security isn't what the listener wants, or
    where the broker refuses the login. If the broker doesn't answer, the Kafka client's own attempts will show it."""
    from ottla.net.blocking import Connection, ConnectionLost, UnsupportedVersion
    from ottla.net.names import Address

    settings = ClientSecurity() if security is None else security.settings
    where = f"{address[0]}:{address[1]}"
    connected = False
    try:
        connection = Connection(
            Address(*address),
            "ottla-cli",
            timeout_s=timeout_s,
            connect_timeout_s=timeout_s,
            security=security,
            through=through,
        )
        connected = True
        try:
            connection.request(_METADATA, connection.version(_METADATA, 4, 12), {"topics": []})
        finally:
            connection.close()
    except LoginRefused as refused:
        assert settings.login is not None
        raise login_refused(*address, settings.login, refused) from refused
    except UnsupportedVersion:
        return
    except ConnectionLost as lost:
        why = _misfit(lost, settings, connected=connected)
        if why is not None:
            raise CommandError(f"{where} {why}", _REMEDY, ExitCode.unreachable) from lost


def _misfit(lost: ConnectionLost, settings: ClientSecurity, *, connected: bool) -> str | None:
    """What the listener at which a connection was lost wants, in words that follow its address; None if the connection
    was lost for another reason. `connected`: the listener had answered before."""
    protocol, cause = settings.protocol, lost.__cause__
    if SPEAKS_TLS in str(lost):
        return f"speaks TLS, and security.protocol is {protocol}"
    if isinstance(cause, TimeoutError):
        return None
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"has a certificate that isn't trusted: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError) and "CERTIFICATE_REQUIRED" in str(cause):
        return "asks for a client's certificate (ssl.keystore.location)"
    if settings.tls is not None and not connected and isinstance(cause, ssl.SSLError | ConnectionResetError):
        return f"doesn't speak TLS, and security.protocol is {protocol}"
    if settings.tls is None and not connected and (cause is None or isinstance(cause, ConnectionResetError)):
        return f"closes the connection without an answer: it may speak TLS, and security.protocol is {protocol}"
    if connected and settings.login is None:
        return f"closes the connection at the first request: it asks for a login, and security.protocol is {protocol}"
    return None


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
