"""Certificates for etcd: made, judged, renewed in time, and accepted by a real one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ottla.operator import certificates
from ottla.operator.certificates import Identity
from ottla.operator.etcd_client import EtcdClient, EtcdUnreachable
from tests.peers.etcd import Etcd
from tests.peers.wire import free_port

NOW = datetime(2026, 5, 1, tzinfo=UTC)
HOSTS = ["k-etcd.n.svc", "*.k-etcd.n.svc", "localhost"]


def test_pairs_are_renewed_when_a_third_of_their_time_is_left() -> None:
    authority = certificates.authority("k-etcd", NOW)
    pairs = certificates.pairs(authority, "k-etcd", HOSTS, NOW)
    assert certificates.usable(authority, pairs, HOSTS, NOW)
    assert certificates.usable(authority, pairs, HOSTS, NOW + timedelta(days=480))
    assert not certificates.usable(authority, pairs, HOSTS, NOW + timedelta(days=500))


def test_what_does_not_fit_is_made_anew() -> None:
    authority = certificates.authority("k-etcd", NOW)
    pairs = certificates.pairs(authority, "k-etcd", HOSTS, NOW)
    assert not certificates.usable(certificates.authority("k-etcd", NOW), pairs, HOSTS, NOW)
    assert not certificates.usable(authority, pairs, HOSTS[:1], NOW)
    assert not certificates.usable(authority, {}, HOSTS, NOW)
    assert not certificates.usable(authority, {**pairs, "client.key": b"nonsense"}, HOSTS, NOW)


def test_secrets_are_what_kubernetes_keeps() -> None:
    pairs = {"ca.crt": b"a", "server.key": b"\x00\xff"}
    assert certificates.decoded({"data": certificates.encoded(pairs)}) == pairs
    assert certificates.decoded(None) == {}


@pytest.fixture
def pairs() -> certificates.Secret:
    return certificates.pairs(certificates.authority("k-etcd", datetime.now(UTC)), "k-etcd", HOSTS, datetime.now(UTC))


@pytest.fixture
def etcd(tmp_path: Path, pairs: certificates.Secret) -> Iterator[Etcd]:
    for name, content in pairs.items():
        (tmp_path / name).write_bytes(content)
    options = [
        "--client-cert-auth",
        *("--cert-file", str(tmp_path / "server.crt"), "--key-file", str(tmp_path / "server.key")),
        *("--trusted-ca-file", str(tmp_path / "ca.crt")),
    ]
    peers = f"one=http://127.0.0.1:{free_port()}"
    running = Etcd(tmp_path / "etcd", options, scheme="https", name="one", peers=peers)
    running.launch()
    yield running
    running.kill()


def _identity(pairs: certificates.Secret) -> Identity:
    return Identity(pairs["ca.crt"], pairs["client.crt"], pairs["client.key"], HOSTS[0])


def test_etcd_lets_in_who_has_them_and_nobody_else(etcd: Etcd, pairs: certificates.Secret) -> None:
    async def run() -> None:
        client = EtcdClient(_identity(pairs))
        deadline = time.monotonic() + 30
        while True:
            try:
                (member,) = await client.members([etcd.endpoint])
                break
            except EtcdUnreachable:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
        assert member.name == "one"
        assert (await client.status(etcd.endpoint)).leads
        strangers = certificates.pairs(
            certificates.authority("other", datetime.now(UTC)), "x", HOSTS, datetime.now(UTC)
        )
        stranger = EtcdClient(Identity(pairs["ca.crt"], strangers["client.crt"], strangers["client.key"], HOSTS[0]))
        impostor = EtcdClient(Identity(pairs["ca.crt"], pairs["client.crt"], pairs["client.key"], "another.n.svc"))
        for other in (stranger, impostor, EtcdClient()):
            with pytest.raises(EtcdUnreachable):
                await other.members([etcd.endpoint])
            await other.close()
        await client.close()

    asyncio.run(run())
