"""Chooses the cluster of a command, and opens the clients of that cluster.

The address comes from `--bootstrap` (or OTTLA_BOOTSTRAP), else from the named context, else from the current context,
else it is the default. If the route leads to one cluster only (`kubectl ottla`), the address comes from the route.

Before a client is opened, a plain socket connects to the address: the operating system's error says why a connection
fails ("connection refused"), but a Kafka client's error doesn't.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from ottla.cli import contexts
from ottla.cli.errors import CommandError, ExitCode, NotFound, UsageError, explain_code
from ottla.cli.options import BOOTSTRAP_DEFAULT
from ottla.cli.route import NoWay, Route, Straight

if TYPE_CHECKING:
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

    from ottla.protocol.messages import Message
    from ottla.security.preparation import PreparedSecurity

T = TypeVar("T")

PORT_DEFAULT = 9092
CLIENT_ID = "ottla-cli"
_CONNECT_TIMEOUT_S_MAX = 5.0
_PASSING_S = 1.0
# The error codes of states that pass by themselves. The group's coordinator is loading, isn't available or has moved
# (for instance while the offsets topic is created). Or the partition is between two leaders: it has no leader yet, not
# every broker knows the new epoch, or the new leader doesn't know the high watermark yet. Or the broker that was asked
# is no longer the leader.
_PASSING_CODES = (14, 15, 16, 5, 6, 74, 75, 78)


class Target(NamedTuple):
    """The cluster that a command connects to: its bootstrap address, and the file with the client's properties."""

    bootstrap: str
    command_config: Path | None


def find_target(route: Route, bootstrap: str | None, context: str | None, command_config: Path | None = None) -> Target:
    """The cluster that the route names; else the one of the address, the context, or the current context. A context's
    file of properties counts if the command has none. Raises UsageError where a cluster is named twice."""
    found = route.bootstrap()
    if found is not None:
        if bootstrap or context:
            raise UsageError(
                "the cluster is already named by the kubeconfig",
                "Leave out --bootstrap, and --context after the command.",
            )
        return Target(found, command_config)
    if bootstrap and context:
        raise UsageError("both a bootstrap address and a context are given", "Leave one of them out.")
    if bootstrap:
        return Target(bootstrap, command_config)
    known = contexts.load()
    name = context or known.current
    if not name:
        return Target(BOOTSTRAP_DEFAULT, command_config)
    address, file = contexts.bootstrap_of(known, name), known.command_configs.get(name)
    return Target(address, Path(file) if command_config is None and file is not None else command_config)


def parse_bootstrap(bootstrap: str) -> list[tuple[str, int]]:
    """`host:port,[v6]:port,host` as pairs; the port defaults to 9092."""
    addresses = []
    for part in (part.strip() for part in bootstrap.split(",")):
        if not part:
            continue
        if "://" in part:
            raise UsageError(f"'{part}' is not HOST:PORT", "Leave out the scheme and '://'.")
        host, colon, port = part.rpartition(":")
        if not colon or part.endswith("]"):
            host, port = part, str(PORT_DEFAULT)
        elif ":" in host and not host.startswith("["):
            raise UsageError(f"'{part}' is not HOST:PORT", "Write an IPv6 address as [::1]:9092.")
        if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(f"'{port}' in '{part}' is not a port", "A port is a number from 1 to 65535.")
        if not host:
            raise UsageError(f"'{part}' has no host", "Write HOST:PORT, for instance 127.0.0.1:9092.")
        addresses.append((host.strip("[]"), int(port)))
    if not addresses:
        raise UsageError("the bootstrap address is empty", "Write HOST:PORT, for instance 127.0.0.1:9092.")
    return addresses


class Cluster:
    """The cluster behind one bootstrap address. The admin client is opened when it is first needed, and closed at the
    end."""

    def __init__(
        self,
        bootstrap: str,
        timeout_s: float,
        route: Route | None = None,
        security: PreparedSecurity | None = None,
        command_config: Path | None = None,
    ) -> None:
        """`command_config` is the file that `security` comes from."""
        self.bootstrap = bootstrap
        self.timeout_s = timeout_s
        self.route: Route = route or Straight()
        self.security = security
        self.command_config = command_config
        self._addresses = parse_bootstrap(bootstrap)
        self._admin: KafkaAdminClient | None = None
        self._reached = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._admin is not None:
            self._admin.close()

    @property
    def timeout_ms(self) -> int:
        """The longest wait for one answer, in ms."""
        return int(self.timeout_s * 1000)

    @property
    def admin(self) -> KafkaAdminClient:
        """The admin client."""
        if self._admin is None:
            from kafka import KafkaAdminClient

            self._admin = self._open(KafkaAdminClient, {})
        return self._admin

    def consumer(self, **settings: Any) -> KafkaConsumer:
        """A new consumer with these settings of kafka-python; the caller closes it."""
        from kafka import KafkaConsumer

        return self._open(KafkaConsumer, settings)

    def producer(self, **settings: Any) -> KafkaProducer:
        """A new producer with these settings of kafka-python; the caller closes it."""
        from kafka import KafkaProducer

        return self._open(KafkaProducer, settings)

    def racks(self) -> dict[int, str | None]:
        """The rack of each registered broker."""
        with explained("the description of the cluster"):
            described = self.patiently(self.admin.describe_cluster)
        return {int(broker["broker_id"]): broker["rack"] for broker in described["brokers"]}

    def living(self) -> set[int]:
        """The brokers that run."""
        with explained("the description of the cluster"):
            described = self.patiently(self.admin.describe_cluster)
        return {int(broker["broker_id"]) for broker in described["brokers"] if not broker.get("is_fenced", False)}

    def patiently(
        self, call: Callable[[], T], *, repeatable: bool = True, check: Callable[[], None] | None = None
    ) -> T:
        """Repeats `call` while the coordinator or the leader is missing. Raises the last error after `timeout_s`.

        `check` is called once, when the error has lasted for a moment. It raises an error if waiting won't help.

        Until a dead broker's session ends, the metadata of the other brokers still lists it, and the client may choose
        this broker. So the call is also repeated after a lost connection, as Kafka's own admin client does, as long as
        a bootstrap address accepts connections. With `repeatable` False, a lost connection ends the attempts: if only
        the answer was lost, a second call would fail although the first one succeeded.
        """
        from kafka.errors import KafkaConnectionError, NodeNotReadyError, UnknownBrokerIdError

        begun = time.monotonic()
        while True:
            try:
                return call()
            except Exception as error:
                lost = repeatable and isinstance(error, KafkaConnectionError | NodeNotReadyError)
                # If a partition has no leader, the client fails because there is no broker -1.
                passing = isinstance(error, UnknownBrokerIdError) or getattr(error, "errno", None) in _PASSING_CODES
                waited = time.monotonic() - begun
                if check is not None and passing and waited > min(_PASSING_S, self.timeout_s / 2):
                    check()
                    check = None
                if not (lost or passing) or waited > self.timeout_s:
                    raise
                if lost:
                    self._reach()
                time.sleep(0.2)

    def ask(self, api: tuple[int, int, int], message: Message) -> Any:
        """Sends one request that the Kafka client can't make, and returns the answer. `api` is the API's key, and the
        lowest and newest version of the message. Raises CommandError."""
        from ottla.cli.security import login_refused
        from ottla.net.blocking import Connection, ConnectionLost, UnsupportedVersion
        from ottla.net.names import Address
        from ottla.protocol.sasl import LoginRefused

        key, lowest, newest = api
        failure: Exception | None = None
        for host, port in self._addresses:
            try:
                through = self.route.reach(host, port, self.timeout_s)
                connection = Connection(
                    Address(host, port),
                    CLIENT_ID,
                    timeout_s=self.timeout_s,
                    security=self.security,
                    through=through,
                )
                try:
                    return connection.request(key, connection.version(key, lowest, newest), message)
                finally:
                    connection.close()
            except LoginRefused as refused:
                assert self.security is not None
                assert self.security.settings.login is not None
                raise login_refused(host, port, self.security.settings.login, refused) from refused
            except (ConnectionLost, NoWay, UnsupportedVersion) as error:
                failure = error
        raise CommandError(str(failure), "Is the address right?", ExitCode.unreachable)

    def _open(self, client: Callable[..., T], settings: dict[str, Any]) -> T:
        if not self._reached:
            self._reach()
        quiet_client_log()
        with explained(f"the cluster at {self.bootstrap}"):
            try:
                return client(
                    bootstrap_servers=[
                        f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self._addresses
                    ],
                    client_id=CLIENT_ID,
                    bootstrap_timeout_ms=self.timeout_ms,
                    **{
                        "request_timeout_ms": self.timeout_ms,
                        **self.route.client_settings(),
                        **self._security_settings(),
                        **settings,
                    },
                )
            except Exception as error:
                if type(error).__name__ not in ("KafkaTimeoutError", "NoBrokersAvailable"):
                    raise
                for host, port in self._addresses:
                    self._check_listener(host, port)
                raise CommandError(
                    f"{self.bootstrap} accepts connections but doesn't answer as a Kafka broker",
                    "Is that the port of another service, or of a listener that needs --command-config?",
                    ExitCode.unreachable,
                ) from error

    def _check_listener(self, host: str, port: int) -> None:
        from ottla.cli.security import check_listener

        timeout_s = min(self.timeout_s, _CONNECT_TIMEOUT_S_MAX)
        try:
            through = self.route.reach(host, port, timeout_s)
        except NoWay:
            return
        check_listener((host, port), through, self.security, timeout_s)

    def _security_settings(self) -> dict[str, Any]:
        if self.security is None:
            return {}
        from ottla.cli.security import client_settings

        return client_settings(self.security)

    def _reach(self) -> None:
        reasons = []
        for host, port in self._addresses:
            reason = _refusal(self.route, host, port, min(self.timeout_s, _CONNECT_TIMEOUT_S_MAX))
            if reason is None:
                if self.security is not None:
                    self._check_listener(host, port)
                self._reached = True
                return
            reasons.append(f"{host}:{port} ({reason})")
        raise CommandError(
            f"can't reach a broker at {', '.join(reasons)}",
            self.route.remedy,
            ExitCode.unreachable,
        )


def _refusal(route: Route, host: str, port: int, timeout_s: float) -> str | None:
    """Why a TCP connection by this route fails; None if it works."""
    try:
        socket.create_connection(route.reach(host, port, timeout_s), timeout=timeout_s).close()
    except NoWay as error:
        return str(error)
    except socket.gaierror:
        return "no such host"
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except UnicodeError:
        return "not a host name"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None


def quiet_client_log() -> None:
    """Keeps kafka-python's own warnings off the terminal, unless `--debug` has set up logging."""
    logger = logging.getLogger("kafka")
    if not logging.getLogger().handlers and not logger.handlers:
        logger.addHandler(logging.NullHandler())
        logger.propagate = False


@contextmanager
def explained(subject: str) -> Iterator[None]:
    """Turns the Kafka client's exceptions into CommandErrors about `subject`."""
    from kafka import errors as kafka_errors

    try:
        yield
    except kafka_errors.KafkaError as error:
        raise sentence(error, subject) from error


def sentence(error: BaseException, subject: str) -> CommandError:
    """The CommandError for an exception of the Kafka client."""
    from kafka import errors as kafka_errors

    if isinstance(error, kafka_errors.BrokerResponseError):
        return explain_code(error.errno or -1, subject, code_name=type(error).__name__)
    if isinstance(error, kafka_errors.KafkaTimeoutError):
        return CommandError(
            f"{subject}: no answer in time",
            "Raise --timeout, or see whether the advertised addresses can be reached (`ottla brokers list`).",
            ExitCode.timed_out,
        )
    if isinstance(error, kafka_errors.KafkaConnectionError | kafka_errors.NodeNotReadyError):
        return CommandError(
            f"{subject}: no connection to a broker of the cluster",
            "Check that the broker runs, and that its advertised address can be reached from here.",
            ExitCode.unreachable,
        )
    if isinstance(error, kafka_errors.UnknownBrokerIdError):
        return NotFound(f"{subject}: the broker has left the cluster", "`ottla brokers list` shows all brokers.")
    if isinstance(error, kafka_errors.IncompatibleBrokerVersion):
        return CommandError(f"{subject}: the broker doesn't serve the API that the command needs ({error})")
    details = ", ".join(str(argument) for argument in error.args)
    return CommandError(f"{subject}: {details or type(error).__name__}")
