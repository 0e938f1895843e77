"""Certificates for etcd: they are created, checked, renewed in time, and accepted by a real etcd."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from ottla.operator import certificates, etcd_pairs, succession
from ottla.operator.certificates import Identity
from ottla.operator.etcd_client import EtcdClient, EtcdUnreachable
from tests.peers.etcd import Etcd
from tests.peers.wire import free_port

NOW = datetime(2026, 5, 1, tzinfo=UTC)
HOSTS = ["k-etcd.n.svc", "*.k-etcd.n.svc", "localhost"]


def test_pairs_are_renewed_when_a_third_of_their_time_is_left() -> None:
    authority = certificates.authority("k-etcd", NOW)
    pairs = etcd_pairs.pairs(authority, {}, "k-etcd", HOSTS, NOW)
    assert etcd_pairs.pairs(authority, pairs, "k-etcd", HOSTS, NOW + timedelta(days=480)) == pairs
    renewed = etcd_pairs.pairs(authority, pairs, "k-etcd", HOSTS, NOW + timedelta(days=500))
    assert renewed["ca.crt"] == pairs["ca.crt"]
    assert all(renewed[part] != pairs[part] for part in pairs if part != "ca.crt")


@pytest.mark.parametrize("damage", [{"client.key": b"nonsense"}, {"server.crt": b""}, {"client.crt": b"x"}])
def test_what_does_not_fit_is_made_anew(damage: certificates.Secret) -> None:
    authority = certificates.authority("k-etcd", NOW)
    pairs = etcd_pairs.pairs(authority, {}, "k-etcd", HOSTS, NOW)
    for by, found, hosts in (
        (certificates.authority("k-etcd", NOW), pairs, HOSTS),
        (authority, pairs, HOSTS[:1]),
        (authority, pairs | damage, HOSTS),
    ):
        made = etcd_pairs.pairs(by, found, "k-etcd", hosts, NOW)
        assert made["client.crt"] not in (pairs["client.crt"], found["client.crt"])
        assert etcd_pairs.pairs(by, made, "k-etcd", hosts, NOW) == made


def test_an_authority_is_followed_by_one_that_is_trusted_before_it_signs() -> None:
    first = certificates.authority("k-etcd", NOW)
    assert succession.tended({}, "k-etcd", NOW, known=False).keys() == {"tls.crt", "tls.key"}
    assert succession.tended(first, "k-etcd", NOW + timedelta(days=2400), known=True) == first
    later = NOW + timedelta(days=2500)
    both = succession.tended(first, "k-etcd", later, known=True)
    assert (both["tls.crt"], both["tls.key"]) == (first["tls.crt"], first["tls.key"])
    assert succession.trusted(both).count(b"BEGIN") == 2
    pairs = etcd_pairs.pairs(first, {}, "k-etcd", HOSTS, later)
    waiting = etcd_pairs.pairs(both, pairs, "k-etcd", HOSTS, later)
    assert waiting == {**pairs, "ca.crt": succession.trusted(both)}, "the pairs are still good"
    assert succession.tended(both, "k-etcd", later, known=False) == both
    second = succession.tended(both, "k-etcd", later, known=True)
    assert second == {"tls.crt": both["next.crt"], "tls.key": both["next.key"], "before.crt": first["tls.crt"]}
    assert succession.trusted(second) == succession.trusted(both), "no pod is restarted, because it trusts both already"
    third = succession.tended(second, "k-etcd", later + timedelta(days=2500), known=True)
    assert third.keys() == {"tls.crt", "tls.key", "next.crt", "next.key"}


def test_an_authority_whose_time_is_over_is_followed_at_once() -> None:
    first = certificates.authority("k-etcd", NOW)
    over = NOW + timedelta(days=certificates.AUTHORITY_DAYS)
    assert succession.tended(first, "k-etcd", over, known=False).keys() == {"tls.crt", "tls.key"}
    both = succession.tended(first, "k-etcd", over - timedelta(days=1), known=False)
    assert succession.tended(both, "k-etcd", over, known=False)["tls.key"] == both["next.key"]


def test_predecessors_stay_trusted_through_further_renewals_until_their_time_is_over() -> None:
    """A person may ask for a second renewal while pairs of the first authority are still in use."""
    first = certificates.authority("k", NOW, 365)
    later, found, made = NOW, first, [first]
    for _ in range(2):
        later += timedelta(days=1)
        found = succession.tended(found, "k", later, known=False, days=500, ahead_days=30, asked=True)
        made.append(succession.successor(found))
        assert all(each["tls.crt"] in succession.trusted(found) for each in made)
        before = succession.trusted(found)
        found = succession.tended(found, "k", later, known=True, days=500, ahead_days=30)
        assert succession.trusted(found) == before, "no pod of etcd is restarted once more"
    over = succession.tended(found, "k", NOW + timedelta(days=365), known=True, days=500, ahead_days=30, asked=True)
    assert first["tls.crt"] not in succession.trusted(over)
    assert made[1]["tls.crt"] in succession.trusted(over)


def test_trusted_certificates_are_apart_though_a_text_lacks_its_last_line_end() -> None:
    first, second = (certificates.authority(name, NOW) for name in ("a", "b"))
    found = {"tls.crt": first["tls.crt"].rstrip(), "ca.crt": b"the root:\n" + second["tls.crt"].rstrip()}
    assert succession.trusted(found) == certificates.joined([second["tls.crt"], first["tls.crt"]])
    assert len(x509.load_pem_x509_certificates(succession.trusted(found))) == 2


def test_secrets_are_what_kubernetes_keeps() -> None:
    pairs = {"ca.crt": b"a", "server.key": b"\x00\xff"}
    assert certificates.decoded({"data": certificates.encoded(pairs)}) == pairs
    assert certificates.decoded(None) == {}


@pytest.fixture
def pairs() -> certificates.Secret:
    now = datetime.now(UTC)
    return etcd_pairs.pairs(certificates.authority("k-etcd", now), {}, "k-etcd", HOSTS, now)


@pytest.fixture
def etcd(tmp_path: Path, pairs: certificates.Secret) -> Iterator[Etcd]:
    for name, content in pairs.items():
        (tmp_path / name).write_bytes(content)
    peers = f"one=http://127.0.0.1:{free_port()}"
    running = Etcd(tmp_path / "etcd", _options(tmp_path), scheme="https", name="one", peers=peers)
    running.launch()
    yield running
    running.kill()


def _options(folder: Path, whose: str = "") -> list[str]:
    files = {"cert-file": "server.crt", "key-file": "server.key", "trusted-ca-file": "ca.crt"}
    return [f"--{whose}client-cert-auth", *(f"--{whose}{option}={folder / name}" for option, name in files.items())]


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
        now = datetime.now(UTC)
        strangers = etcd_pairs.pairs(certificates.authority("other", now), {}, "x", HOSTS, now)
        stranger = EtcdClient(Identity(pairs["ca.crt"], strangers["client.crt"], strangers["client.key"], HOSTS[0]))
        impostor = EtcdClient(Identity(pairs["ca.crt"], pairs["client.crt"], pairs["client.key"], "another.n.svc"))
        for other in (stranger, impostor, EtcdClient()):
            with pytest.raises(EtcdUnreachable):
                await other.members([etcd.endpoint])
            await other.close()
        await client.close()

    asyncio.run(run())


def test_members_that_renew_their_authority_go_on_together(tmp_path: Path) -> None:
    """The steps of a renewal on three members that talk TLS to each other, and are restarted one by one."""
    now = datetime.now(UTC)
    first = certificates.authority("k-etcd", now - timedelta(days=2500))
    both = succession.tended(first, "k-etcd", now, known=False)
    second = succession.tended(both, "k-etcd", now, known=True)
    held = etcd_pairs.pairs(first, {}, "k-etcd", HOSTS, now)
    names = ("one", "two", "three")
    peers = ",".join(f"{name}=https://localhost:{free_port()}" for name in names)
    members: dict[str, Etcd] = {}

    def mount(pairs: certificates.Secret) -> certificates.Secret:
        for part, content in pairs.items():
            (tmp_path / part).write_bytes(content)
        return pairs

    async def agree(pairs: certificates.Secret) -> None:
        client = EtcdClient(_identity(pairs))
        deadline = time.monotonic() + 30
        for member in members.values():
            while True:
                try:
                    assert len(await client.members([member.endpoint])) == 3
                    break
                except EtcdUnreachable:
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.1)
        await client.close()

    mount(held)
    options = [*_options(tmp_path), *_options(tmp_path, "peer-")]
    for name in names:
        members[name] = Etcd(tmp_path / name, options, scheme="https", name=name, peers=peers)
        members[name].launch()
    try:
        asyncio.run(agree(held))
        held = mount(etcd_pairs.pairs(both, held, "k-etcd", HOSTS, now))
        for member in members.values():
            member.kill()
            member.launch()
            asyncio.run(agree(held))
        held = mount(etcd_pairs.pairs(second, held, "k-etcd", HOSTS, now))
        asyncio.run(agree(held))
        members["two"].kill()
        members["two"].launch()
        asyncio.run(agree(held))
    finally:
        for member in members.values():
            member.kill()
