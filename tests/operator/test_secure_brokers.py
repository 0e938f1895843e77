"""Real brokers with the files that the operator plans: they are reached by the operator's certificate alone, they take
over another authority while they run, and they change to encrypted links one after the other without losing each other.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.request import urlopen

import pytest

from ottla.operator import brokers as broker_pages
from ottla.operator import certificates, succession
from ottla.operator.brokers import BrokerPages, PageAt
from ottla.operator.certificates import CLIENT, SERVER, Identity, Issued, Secret
from ottla.operator.kafka import KafkaAdmin, Unreachable
from ottla.operator.kafka_users import create_acls
from ottla.operator.link import Link, link_of
from ottla.operator.objects import Object, Ref
from ottla.operator.plan import broker_tls
from ottla.operator.plan.broker_tls import (
    CLIENTS_CA_FILE,
    CLUSTER_CA_FILE,
    FOLDER,
    LINKS_FILE,
    ORGANIZATION,
    PAGES_CA_FILE,
)
from ottla.operator.plan.topic import Create
from ottla.operator.queue import Retry
from ottla.operator.spec.cluster import Cluster, Defaults, parse_cluster
from ottla.operator.spec.security import Links
from ottla.operator.spec.user import Rule
from ottla.operator.trust_probe import TrustProbe
from ottla.protocol.acls import PatternType, Permission
from ottla.protocol.rights import CLUSTER_NAME, AclOperation, ResourceType
from tests.e2e.numbered import PARTITIONS, Numbered
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.wire import free_port

NOW = datetime.now(UTC)
LISTENERS = [
    {"name": "plain", "port": 9092, "type": "Internal"},
    {"name": "mtls", "port": 9094, "type": "Internal", "tls": True, "authentication": {"type": "tls"}},
]


def cluster(links: Links, **spec: Any) -> Cluster:
    meta = {"namespace": "shop", "name": "k", "uid": "u1", "generation": 1}
    spec = {"brokers": {"replicas": 2, "storage": {"size": "1Gi"}}, "listeners": LISTENERS, **spec}
    return replace(parse_cluster({"metadata": meta, "spec": spec}, Defaults("ottla:1", "etcd:1")), links=links)


class Files:
    """The files of the brokers' Secret, and the operator's certificate, by two authorities."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.of_cluster = certificates.authority("k-cluster-ca", NOW, 365)
        self.of_clients = certificates.authority("k-clients-ca", NOW, 365)
        self.write()

    def write(self) -> None:
        """Writes all files, each in one step, as kubelets do."""
        self._put(CLUSTER_CA_FILE, succession.trusted(self.of_cluster))
        self._put(CLIENTS_CA_FILE, succession.trusted(self.of_clients))
        both = [succession.trusted(each) for each in (self.of_cluster, self.of_clients)]
        self._put(PAGES_CA_FILE, certificates.joined(both))
        hosts = [broker_tls.server_name("shop", "k"), "127.0.0.1"]
        for file in (LINKS_FILE, "mtls.pem"):
            self._put(file, self.issued("k-brokers", hosts=hosts, purposes=(CLIENT, SERVER)).store)

    def issued(self, name: str, **more: Any) -> Issued:
        return certificates.issued(self.of_cluster, name, NOW, organization=ORGANIZATION, **more)

    def operator(self) -> Link:
        pair = self.issued("k-operator")
        trust = succession.trusted(self.of_cluster)
        return Link(Identity(trust, pair.certificate, pair.key, broker_tls.server_name("shop", "k")))

    def _put(self, name: str, content: bytes) -> None:
        new = self.folder / f".{name}"
        new.write_bytes(content)
        new.rename(self.folder / name)


class Brokers:
    """Two brokers with ports of their own, made for stages of a Cluster one by one."""

    def __init__(self, folder: Path, **spec: Any) -> None:
        self.files = Files(folder / "tls")
        self.ports = [
            {name: free_port() for name in ("REPLICATION", "REPLICATION-TLS", "PLAIN", "MTLS", "HTTP")} for _ in "ab"
        ]
        self._folder = folder
        self._spec = spec
        self.brokers: dict[int, OttlaBroker] = {}

    def start(self, number: int, links: Links) -> None:
        """Starts a broker for a stage, anew if it runs."""
        if number in self.brokers:
            self.brokers[number].stop()
        of = cluster(links, **self._spec)
        protocols = {"REPLICATION": "PLAINTEXT", "REPLICATION-TLS": "SSL", "PLAIN": "PLAINTEXT", "MTLS": "SSL"}
        opened = [name for name in protocols if name != "REPLICATION" or links.plain_open]
        opened = [name for name in opened if name != "REPLICATION-TLS" or links.encrypted_open]
        told = ",".join(f"{name}://127.0.0.1:{self.ports[number][name]}" for name in opened)
        tls = {name: text.replace(FOLDER, str(self.files.folder)) for name, text in broker_tls.settings(of).items()}
        self.brokers[number] = OttlaBroker(
            self._folder / f"broker-{number}",
            f"127.0.0.1:{self.ports[number]['PLAIN']}",
            **{
                "node.id": str(number),
                "listeners": told,
                "advertised.listeners": told,
                "listener.security.protocol.map": ",".join(f"{name}:{protocols[name]}" for name in opened),
                "inter.broker.listener.name": "REPLICATION-TLS" if links.by_encrypted else "REPLICATION",
                "ottla.metadata.store": f"embedded:{self._folder / 'metadata'}",
                "ottla.http.listener": f"127.0.0.1:{self.ports[number]['HTTP']}",
                "ottla.http.security.protocol": "SSL" if broker_tls.pages_encrypted(of) else "PLAINTEXT",
                "default.replication.factor": "2",
                "min.insync.replicas": "1",
                **tls,
            },
        )

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.kill()


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[..., Brokers]]:
    all_of_them = []

    def make(**spec: Any) -> Brokers:
        brokers = Brokers(tmp_path, **spec)
        all_of_them.append(brokers)
        return brokers

    yield make
    for each in all_of_them:
        each.close()


def test_only_the_operators_certificate_gets_in_and_its_rights_are_everything(made: Callable[..., Brokers]) -> None:
    brokers = made(authorization={"type": "simple"})
    for number in (0, 1):
        brokers.start(number, Links.ENCRYPTED)
    address = f"127.0.0.1:{brokers.ports[0]['REPLICATION-TLS']}"

    async def scene() -> None:
        admin = KafkaAdmin(address, brokers.files.operator().connect)
        assert await admin.create([Create("orders", 2, 2, {})]) == {"orders": None}
        deadline = time.monotonic() + 30
        while True:
            partitions = (await admin.look()).topics["orders"].partitions.values()
            if all(len(partition.in_sync) == 2 for partition in partitions):
                break
            assert time.monotonic() < deadline, "the brokers may not fetch from each other"
            await asyncio.sleep(0.2)
        admin.close()
        stranger = certificates.authority("k-cluster-ca", NOW)
        pair = certificates.issued(stranger, "k-operator", NOW, organization=ORGANIZATION)
        trust, name = succession.trusted(brokers.files.of_cluster), broker_tls.server_name("shop", "k")
        admin = KafkaAdmin(address, Link(Identity(trust, pair.certificate, pair.key, name)).connect)
        with pytest.raises(Unreachable):
            await admin.cluster_id()

    asyncio.run(scene())


@pytest.mark.parametrize("rules", ["DEFAULT", "RULE:^CN=(.*?)$/$1/"])
def test_the_pages_are_read_by_the_operator_and_by_users_with_the_right_and_their_health_by_everybody(
    made: Callable[..., Brokers], rules: str
) -> None:
    brokers = made(authorization={"type": "simple"}, config={"ssl.principal.mapping.rules": rules})
    brokers.start(0, Links.ENCRYPTED)
    files, port = brokers.files, brokers.ports[0]["HTTP"]
    operator = files.operator().identity
    assert operator is not None
    pair = certificates.issued(files.of_clients, "prometheus", NOW)
    user = replace(operator, certificate=pair.certificate, key=pair.key)

    def health() -> bytes:
        anybody = ssl.create_default_context(cadata=operator.authority.decode())
        with urlopen(f"https://127.0.0.1:{port}/healthz", timeout=10, context=anybody) as answer:
            return bytes(answer.read())

    async def scene() -> None:
        pages = BrokerPages()
        try:
            with patch.object(broker_pages, "HTTP_PORT", port):
                deadline = time.monotonic() + 30
                while not (found := await pages.reports({0: PageAt("127.0.0.1", operator)})):
                    assert time.monotonic() < deadline, "the operator may not read the pages"
                    await asyncio.sleep(0.2)
                assert found[0].metadata_connected
                assert await pages.reports({0: PageAt("127.0.0.1", user)}) == {}
                assert await pages.reports({0: PageAt("127.0.0.1")}) == {}, "they aren't plain any more"
                admin = KafkaAdmin(f"127.0.0.1:{brokers.ports[0]['REPLICATION-TLS']}", files.operator().connect)
                name = "prometheus" if rules != "DEFAULT" else "CN=prometheus"
                right = Rule(
                    ResourceType.CLUSTER,
                    PatternType.LITERAL,
                    CLUSTER_NAME,
                    "*",
                    AclOperation.DESCRIBE,
                    Permission.ALLOW,
                )
                assert list((await create_acls(admin, [right.of(f"User:{name}")])).values()) == [None]
                admin.close()
                assert await pages.reports({0: PageAt("127.0.0.1", user)})
        finally:
            await pages.close()

    asyncio.run(scene())
    assert health()


class Secrets:
    """A Kubernetes that has the Secret with the operator's certificate, or doesn't have it yet."""

    def __init__(self, data: Secret) -> None:
        self._data = data

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        assert (kind, namespace, name) == ("Secret", "shop", "k-operator-tls")
        return {"data": certificates.encoded(self._data)} if self._data else None


def test_the_operator_connects_by_the_certificate_in_its_secret(made: Callable[..., Brokers]) -> None:
    brokers = made()
    for number in (0, 1):
        brokers.start(number, Links.OPENED)
    pair = brokers.files.issued("k-operator")
    trust = succession.trusted(brokers.files.of_cluster)
    data = {"ca.crt": trust, "tls.crt": pair.certificate, "tls.key": pair.key}

    async def scene() -> None:
        assert await link_of(Secrets({}), Ref("shop", "k"), encrypted=False) == Link()
        with pytest.raises(Retry, match=r"k-operator-tls.*isn't made yet"):
            await link_of(Secrets({}), Ref("shop", "k"), encrypted=True)
        link = await link_of(Secrets(data), Ref("shop", "k"), encrypted=True)
        assert (link.port, Link().port) == (9089, 9091)
        for ports in brokers.ports:
            for way, port in ((link, ports["REPLICATION-TLS"]), (Link(), ports["REPLICATION"])):
                admin = KafkaAdmin(f"127.0.0.1:{port}", way.connect)
                assert await admin.cluster_id()
                # These requests go to each broker, at the address that it advertises for this listener.
                assert len((await admin.loads()).worked) == 2
                assert not await admin.throttled_by_hand()
                admin.close()

    asyncio.run(scene())


def test_a_running_broker_takes_over_another_authority_and_the_operator_sees_when(
    made: Callable[..., Brokers],
) -> None:
    brokers, probe = made(), TrustProbe()
    for number in (0, 1):
        brokers.start(number, Links.ENCRYPTED)
    files = brokers.files

    def accepted(authority: Secret, listener: str) -> bool:
        pair = certificates.issued(authority, "k-probe", NOW, days=1)
        return all(asyncio.run(probe.accepted(["127.0.0.1"], ports[listener], pair)) for ports in brokers.ports)

    def shown(authority: Secret) -> bool:
        pair = certificates.issued(authority, "k-probe", NOW, days=1)
        asked = (
            asyncio.run(probe.shown(["127.0.0.1"], ports["REPLICATION-TLS"], pair, authority["tls.crt"]))
            for ports in brokers.ports
        )
        return all(asked)

    def within(seconds: float, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < deadline
            time.sleep(0.2)

    for whose, listener in (("of_clients", "MTLS"), ("of_cluster", "REPLICATION-TLS")):
        first: Secret = getattr(files, whose)
        assert accepted(first, listener)
        both = succession.tended(first, "k", NOW, known=False, asked=True)
        assert not accepted(succession.successor(both), listener)
        setattr(files, whose, both)
        files.write()
        within(20, lambda: accepted(succession.successor(both), listener))  # noqa: B023
        second = succession.tended(both, "k", NOW, known=True)
        setattr(files, whose, second)
        files.write()
        if whose == "of_cluster":
            within(20, lambda: shown(second))  # noqa: B023
        setattr(files, whose, succession.without_predecessor(second))
        files.write()
        within(20, lambda: not accepted(first, listener))  # noqa: B023
        assert accepted(second, listener)


def test_links_become_encrypted_and_plain_again_and_no_client_notices(made: Callable[..., Brokers]) -> None:
    """The stages of `plan/links.py`, with the authorizer in the last one, under a client with a certificate. Replicas
    get in sync after each restart of a broker, so brokers of neighbouring stages reach each other."""
    brokers = made(authorization={"type": "simple", "superUsers": ["User:CN=app", "User:ANONYMOUS"]})
    for number in (0, 1):
        brokers.start(number, Links.PLAIN)

    def asked(number: int, links: Links) -> KafkaAdmin:
        encrypted = links.encrypted_open
        port = brokers.ports[number]["REPLICATION-TLS" if encrypted else "REPLICATION"]
        return KafkaAdmin(f"127.0.0.1:{port}", (brokers.files.operator() if encrypted else Link()).connect)

    async def in_sync(links: Links) -> None:
        admin = asked(1, links)
        deadline = time.monotonic() + 40
        while True:
            try:
                partitions = (await admin.look()).topics["numbered"].partitions.values()
                if all(len(partition.in_sync) == 2 for partition in partitions):
                    break
            except Unreachable:
                pass
            assert time.monotonic() < deadline, f"not in sync at {links.name}"
            await asyncio.sleep(0.2)
        admin.close()

    async def create() -> None:
        admin = asked(0, Links.PLAIN)
        assert await admin.create([Create("numbered", PARTITIONS, 2, {})]) == {"numbered": None}
        admin.close()

    asyncio.run(create())
    pair = certificates.issued(brokers.files.of_clients, "app", NOW)
    client = Numbered(
        {
            "bootstrap.servers": ",".join(f"127.0.0.1:{ports['MTLS']}" for ports in brokers.ports),
            "security.protocol": "ssl",
            "ssl.ca.pem": succession.trusted(brokers.files.of_cluster).decode(),
            "ssl.certificate.pem": pair.certificate.decode(),
            "ssl.key.pem": pair.key.decode(),
            "log_level": "0",
        },
        "numbered",
    )
    client.start()
    stages = [Links.OPENED, Links.SWITCHED, Links.ENCRYPTED, Links.SWITCHED, Links.OPENED, Links.PLAIN]
    before = Links.PLAIN
    for stage in stages:
        for number in (0, 1):
            brokers.start(number, stage)
            asyncio.run(in_sync(stage if number else before))
            client.goes_on(100)
        before = stage
    client.finish()
