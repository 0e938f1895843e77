"""TLS of listeners: what the settings mean, which renewals are refused, and how files and settings take effect."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ottla.security import tls_listeners
from ottla.security.listener_tls import listener_settings
from ottla.security.tls_listeners import TlsListeners
from ottla.security.tls_settings import InvalidTls
from ottla.settings.config import BrokerConfig
from tests.peers.certificates import Authority, certificate
from tests.unit.waiting import until


def configuration(key: Path, trust: Path, **others: str) -> BrokerConfig:
    settings = {
        "node.id": "0",
        "listeners": "PLAINTEXT://:1,OUTSIDE://:2,SSL://:3",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUTSIDE:SSL,SSL:SSL",
        "inter.broker.listener.name": "SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(key),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(trust),
    } | {name.replace("_", "."): value for name, value in others.items()}
    return BrokerConfig.from_sources("".join(f"{name}={value}\n" for name, value in settings.items()))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def test_a_listener_has_settings_of_its_own(authority: Authority) -> None:
    config = configuration(
        authority.issue("all"),
        authority.trust,
        listener_name_outside_ssl_keystore_location="/other",
        listener_name_outside_ssl_client_auth="required",
    )
    outside, inside = (listener_settings(config, name, serves=True) for name in ("OUTSIDE", "SSL"))
    assert (outside.tls.keystore_location, outside.client_auth, outside.connects) == ("/other", "required", False)
    assert (inside.client_auth, inside.connects) == ("none", True)


def test_plaintext_listeners_have_none(authority: Authority) -> None:
    async def play() -> None:
        tls = TlsListeners(serves=True)
        with pytest.raises(ConnectionError, match="aren't read yet"):
            tls.client_context()
        await tls.load(configuration(authority.issue("all"), authority.trust))
        assert tls.client_context().check_hostname
        assert tls.of("PLAINTEXT") is None
        assert tls.of("OUTSIDE") is not None

    asyncio.run(play())


def test_a_listener_without_a_certificate_is_refused(authority: Authority) -> None:
    async def play() -> None:
        config = configuration(authority.issue("all"), authority.trust, ssl_keystore_location="")
        with pytest.raises(InvalidTls, match=r"^listener OUTSIDE: a listener needs a certificate"):
            await TlsListeners(serves=True).load(config)
        await TlsListeners(serves=False).load(config)  # a controller connects, and needs none

    asyncio.run(play())


def test_brokers_that_wouldnt_trust_one_another_are_refused(authority: Authority, tmp_path: Path) -> None:
    async def play() -> None:
        config = configuration(
            Authority(tmp_path / "other").issue("all"), authority.trust, listener_name_ssl_ssl_client_auth="required"
        )
        with pytest.raises(InvalidTls, match=r"^listener SSL: brokers with this key store don't trust one another"):
            await TlsListeners(serves=True).load(config)

    asyncio.run(play())


async def _replaced(authority: Authority, new: Path, trust: Path | None = None, **others: str) -> TlsListeners:
    """A process whose key store `new` takes the place of one for broker-1.example."""
    tls = TlsListeners(serves=True)
    old = authority.issue("old", "broker-1.example", common_name="broker")
    await tls.load(configuration(old, authority.trust, **others))
    tls.install(await tls.prepare(configuration(new, trust or authority.trust, **others)))
    return tls


@pytest.mark.parametrize(
    ("hosts", "common_name", "allowed", "why"),
    [
        (("broker-1.example",), "broker", {}, None),
        (("broker-1.example", "another.example"), "broker", {}, None),
        (
            ("another.example",),
            "broker",
            {},
            "SubjectAltNames do not match: .* lacks broker-1.example",
        ),
        (("another.example",), "broker", {"ssl_allow_san_changes": "true"}, None),
        (("broker-1.example",), "someone", {}, "DistinguishedName does not match: existing=CN=broker,"),
        (("broker-1.example",), "someone", {"ssl_allow_dn_changes": "true"}, None),
    ],
)
def test_names_of_a_renewed_certificate(
    authority: Authority, hosts: tuple[str, ...], common_name: str, allowed: dict[str, str], why: str | None
) -> None:
    new = authority.issue("new", *hosts, common_name=common_name)
    if why is None:
        asyncio.run(_replaced(authority, new, **allowed))
    else:
        with pytest.raises(InvalidTls, match=why):
            asyncio.run(_replaced(authority, new, **allowed))


def test_a_renewal_that_brokers_wouldnt_trust_is_refused(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    new = other.issue("new", "broker-1.example", common_name="broker")
    allowed = {"ssl_allow_dn_changes": "true"}
    with pytest.raises(InvalidTls, match=r"^listener SSL: a broker with the old stores couldn't connect"):
        asyncio.run(_replaced(authority, new, other.trust, **allowed))


def test_any_renewal_is_better_than_a_certificate_that_has_expired(authority: Authority, tmp_path: Path) -> None:
    """Nobody connects to such a broker any more. If it refused another authority, only a restart would help."""
    other = Authority(tmp_path / "other")
    new = other.issue("new", "broker-1.example", common_name="broker")

    async def play() -> None:
        tls = TlsListeners(serves=True)
        old = authority.issue("all", "broker-1.example", common_name="broker", expired=True)
        await tls.load(configuration(old, authority.trust))
        found = await tls.prepare(configuration(new, other.trust, ssl_allow_dn_changes="true"))
        assert found.keys() == {"OUTSIDE", "SSL"}

    asyncio.run(play())


def test_a_trust_store_cant_be_removed(authority: Authority) -> None:
    async def play() -> None:
        tls = TlsListeners(serves=True)
        key = authority.issue("all")
        await tls.load(configuration(key, authority.trust))
        with pytest.raises(InvalidTls, match="the trust store can't be removed"):
            await tls.prepare(configuration(key, authority.trust, ssl_truststore_location=""))

    asyncio.run(play())


def test_a_changed_file_is_in_force_within_moments(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tls_listeners, "LOOKED_SECONDS", 0.02)

    async def play() -> None:
        key = authority.issue("all", common_name="broker")
        config = configuration(key, authority.trust)
        tls = TlsListeners(serves=True)
        await tls.load(config)
        listener = tls.of("OUTSIDE")
        assert listener is not None
        before = listener.context()
        watch = asyncio.create_task(tls.follow_files(lambda: config))
        good = key.read_bytes()
        key.write_text("half a file")
        await asyncio.sleep(0.3)
        assert listener.context() is before
        assert sum("can't be used" in line for line in caplog.messages) == 2  # once for each listener
        key.write_bytes(good)
        await asyncio.sleep(0.3)
        assert listener.context() is before  # the same content needs no other context
        authority.issue("all", common_name="broker")
        await until(lambda: listener.context() is not before)
        watch.cancel()

    asyncio.run(play())


def test_a_changed_trust_store_is_in_force_though_the_file_of_the_key_is_missing(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A Secret that was lost is made anew with the trusted certificates first, and with keys later."""

    async def play() -> None:
        key, trust = authority.issue("all", common_name="broker"), tmp_path / "trust.crt"
        trust.write_bytes(authority.trust.read_bytes())
        config = configuration(key, trust)
        tls = TlsListeners(serves=True)
        await tls.load(config)
        listener = tls.of("OUTSIDE")
        assert listener is not None
        before = listener.loaded
        key.unlink()
        await tls.follow(config)
        assert listener.loaded is before, "nothing but the key is missing"
        another = Authority(tmp_path / "another")
        trust.write_bytes(authority.trust.read_bytes() + another.trust.read_bytes())
        await tls.follow(config)
        assert listener.loaded.stores.identities == before.stores.identities
        assert listener.loaded.stores.trusted is not None
        assert len(listener.loaded.stores.trusted) == 2
        assert any(f"the key in force stays, because {key} is missing" in line for line in caplog.messages)
        with pytest.raises(InvalidTls, match=r"the key store .*"):
            await tls.prepare(config)  # an administrator who sets the same path again is told
        key.write_bytes(another.issue("all", common_name="broker").read_bytes())
        await tls.follow(config)
        assert listener.loaded.stores.identities != before.stores.identities

    asyncio.run(play())


def test_principals(authority: Authority) -> None:
    async def play() -> None:
        rules = "RULE:^CN=([a-z]+),.*$/$1/"
        config = configuration(authority.issue("all"), authority.trust, ssl_principal_mapping_rules=rules)
        tls = TlsListeners(serves=True)
        await tls.load(config)
        listener = tls.of("SSL")
        assert listener is not None
        assert listener.principal_of(None) == "User:ANONYMOUS"
        for common_name, principal in (("app", "User:app"), ("APP", None)):
            client = certificate(authority.issue("client", common_name=common_name))
            if principal is not None:
                assert listener.principal_of(client) == principal
            else:
                with pytest.raises(ValueError, match=r"no rule of ssl\.principal\.mapping\.rules applies to CN=APP"):
                    listener.principal_of(client)
        with pytest.raises(ValueError, match="can't be read"):
            listener.principal_of(b"junk")

    asyncio.run(play())
