"""What a command says when the client's security isn't what the listener wants."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.cli.connection import Cluster
from ottla.cli.errors import CommandError
from ottla.cli.route import Straight
from ottla.cli.security import read_command_config
from tests.cli.conftest import Ottla
from tests.peers.certificates import Authority
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.wire import free_port

PROTOCOLS = {"OPEN": "PLAINTEXT", "TLS": "SSL", "LOGIN": "SASL_PLAINTEXT", "BOTH": "SASL_SSL"}
POD = "flights-broker-0.flights-brokers.demo.svc"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


class Listeners:
    """A broker with a listener of each protocol, and the files of clients."""

    def __init__(self, folder: Path) -> None:
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in PROTOCOLS}
        self.authority = Authority(folder / "ca")
        self.folder = folder
        listeners = ",".join(f"{name}://{address}" for name, address in self.addresses.items())
        jaas = f'{MODULE} required user_a="geheim";'
        self.broker = OttlaBroker(
            folder,
            self.addresses["OPEN"],
            listeners=listeners,
            advertised_listeners=listeners,
            listener_security_protocol_map=",".join(f"{name}:{protocol}" for name, protocol in PROTOCOLS.items()),
            inter_broker_listener_name="OPEN",
            sasl_enabled_mechanisms="PLAIN",
            listener_name_login_plain_sasl_jaas_config=jaas,
            listener_name_both_plain_sasl_jaas_config=jaas,
            ssl_keystore_type="PEM",
            ssl_keystore_location=str(self.authority.issue("broker", "127.0.0.1", POD)),
        )

    def client(self, protocol: str, trust: Path | None = None) -> str:
        path = self.folder / f"{protocol}.properties"
        path.write_text(
            f"security.protocol={protocol}\nssl.truststore.type=PEM\n"
            f"ssl.truststore.location={trust or self.authority.trust}\nsasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={MODULE} required username="a" password="geheim";\n'
        )
        return str(path)


@pytest.fixture(scope="module")
def listeners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listeners]:
    made = Listeners(tmp_path_factory.mktemp("listeners"))
    yield made
    made.broker.stop()


@pytest.mark.parametrize(
    ("protocol", "listener", "sentence"),
    [
        ("PLAINTEXT", "TLS", "speak TLS, and security.protocol is PLAINTEXT"),
        ("PLAINTEXT", "LOGIN", "it asks for a login, and security.protocol is PLAINTEXT"),
        ("PLAINTEXT", "BOTH", "speak TLS, and security.protocol is PLAINTEXT"),
        ("SSL", "OPEN", "doesn't speak TLS, and security.protocol is SSL"),
        ("SSL", "LOGIN", "doesn't speak TLS, and security.protocol is SSL"),
        ("SSL", "BOTH", "it asks for a login, and security.protocol is SSL"),
        ("SASL_PLAINTEXT", "OPEN", "the listener asks for no login: security.protocol must be PLAINTEXT or SSL"),
        ("SASL_PLAINTEXT", "TLS", "speak TLS, and security.protocol is SASL_PLAINTEXT"),
        ("SASL_PLAINTEXT", "BOTH", "speak TLS, and security.protocol is SASL_PLAINTEXT"),
        ("SASL_SSL", "OPEN", "doesn't speak TLS, and security.protocol is SASL_SSL"),
        ("SASL_SSL", "TLS", "the listener asks for no login: security.protocol must be PLAINTEXT or SSL"),
        ("SASL_SSL", "LOGIN", "doesn't speak TLS, and security.protocol is SASL_SSL"),
    ],
)
def test_the_wrong_protocol(ottla: Ottla, listeners: Listeners, protocol: str, listener: str, sentence: str) -> None:
    there = ("-b", listeners.addresses[listener], "--timeout", "10")
    config = ("--command-config", listeners.client(protocol))
    found = ottla("topics", "list", *there, *config)
    assert (found.code in (1, 3), sentence in found.stderr) == (True, True), found.stderr
    assert listeners.addresses[listener] in found.stderr
    assert "geheim" not in found.stderr


@pytest.mark.parametrize("listener", ["TLS", "LOGIN", "BOTH"])
def test_no_file_of_properties(ottla: Ottla, listeners: Listeners, listener: str) -> None:
    found = ottla("topics", "list", "-b", listeners.addresses[listener], "--timeout", "5")
    assert found.code == 3
    assert "security.protocol is PLAINTEXT" in found.stderr, found.stderr


@pytest.mark.parametrize(("name", "protocol"), [("OPEN", "PLAINTEXT"), *list(PROTOCOLS.items())[1:]])
def test_the_right_protocol(ottla: Ottla, listeners: Listeners, name: str, protocol: str) -> None:
    config = ("--command-config", listeners.client(protocol))
    assert ottla("topics", "list", "-b", listeners.addresses[name], *config).code == 0


def test_a_certificate_of_an_unknown_authority(ottla: Ottla, listeners: Listeners, tmp_path: Path) -> None:
    config = ("--command-config", listeners.client("SSL", Authority(tmp_path).trust))
    found = ottla("topics", "list", "-b", listeners.addresses["TLS"], *config)
    assert (found.code, "has a certificate that isn't trusted: " in found.stderr) == (3, True)


class Forwarded(Straight):
    """A route by which every address is reached at another one, as through `kubectl port-forward`."""

    def __init__(self, through: str) -> None:
        host, _, port = through.partition(":")
        self.through = host, int(port)

    def reach(self, host: str, port: int, timeout_s: float) -> tuple[str, int]:
        return self.through


def test_a_certificate_is_that_of_the_pod_also_through_a_port_forward(listeners: Listeners) -> None:
    security = read_command_config(Path(listeners.client("SASL_SSL")))
    route = Forwarded(listeners.addresses["BOTH"])
    with Cluster(f"{POD}:9093", 10, route, security) as cluster:
        cluster._check_listener(POD, 9093)
        assert cluster.ask((60, 0, 0), {}).cluster_id
        with pytest.raises(CommandError, match=r"other\.demo\.svc:9093 has a certificate that isn't trusted"):
            cluster._check_listener("other.demo.svc", 9093)
