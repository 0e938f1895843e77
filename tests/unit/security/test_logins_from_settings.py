"""Logins as settings and clients' properties describe them: prefixes, contradictions, and messages without secrets."""

from __future__ import annotations

import pytest

from ottla.protocol.sasl import PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from ottla.security.client_login import ClientLogin
from ottla.security.client_settings import ClientSecurity, client_security
from ottla.security.jaas import PLAIN_MODULE, SCRAM_MODULE
from ottla.security.listener_logins import ignored_jaas, logins_of, own_login
from ottla.settings.config import BrokerConfig, InvalidConfiguration

BASE = """
node.id=0
listeners=IN://:1,OUT://:2
listener.security.protocol.map=IN:SASL_PLAINTEXT,OUT:SASL_PLAINTEXT
inter.broker.listener.name=IN
sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512
"""
SCRAM = "sasl.enabled.mechanisms=SCRAM-SHA-512\n"
OWN = f'listener.name.in.scram-sha-512.sasl.jaas.config={SCRAM_MODULE} required username="broker" password="hunter2";\n'


def config(text: str) -> BrokerConfig:
    return BrokerConfig.from_sources(BASE + text)


def test_the_most_special_prefix_counts() -> None:
    plain = f'listener.name.out.plain.sasl.jaas.config={PLAIN_MODULE} required user_a="b";\n'
    logins = logins_of(
        config(
            SCRAM + OWN + plain + "listener.name.out.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256\n"
            "connections.max.reauth.ms=1\nlistener.name.out.connections.max.reauth.ms=2\n"
            "listener.name.out.plain.connections.max.reauth.ms=3\nlistener.name.in.sasl.server.max.receive.size=99\n"
        )
    )
    assert logins["IN"].session_ms_max == {SCRAM_SHA_512: 1}
    assert logins["OUT"].session_ms_max == {PLAIN: 3, SCRAM_SHA_256: 2}
    assert [logins[name].frame_bytes_max for name in ("IN", "OUT")] == [99, 524288]
    assert list(logins["OUT"].plain_users) == ["a"]
    assert "hunter2" not in repr(logins)


def test_a_broker_logs_in_by_its_listeners_configuration() -> None:
    assert own_login(config(SCRAM + OWN)) == ClientLogin(SCRAM_SHA_512, "broker", "hunter2")
    assert "hunter2" not in repr(own_login(config(SCRAM + OWN)))
    plaintext = BrokerConfig.from_sources("node.id=0\nlisteners=PLAINTEXT://:1")
    assert own_login(plaintext) is None
    assert logins_of(plaintext) == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (OWN, "sasl.enabled.mechanisms=GSSAPI for the listener IN: Ottla doesn't have GSSAPI; name some of PLAIN"),
        ("sasl.enabled.mechanisms=\n" + OWN, "no mechanism is named"),
        ("sasl.enabled.mechanisms=SCRAM-SHA-256\n" + OWN, "isn't among sasl.enabled.mechanisms of the inter-broker"),
        (SCRAM, "listener.name.in.scram-sha-512.sasl.jaas.config: names no login module"),
        (SCRAM + OWN.replace(";", ""), "doesn't end with a semicolon"),
        (SCRAM + OWN.replace("username", "user"), "has no username"),
        (SCRAM + OWN.replace(SCRAM_MODULE, PLAIN_MODULE), "SCRAM-SHA-512 needs org.apache.kafka"),
        (SCRAM + OWN + "listener.name.out.sasl.enabled.mechanisms=PLAIN\n", "listener.name.out.plain.sasl.jaas.config"),
    ],
)
def test_settings_with_which_nobody_could_log_in_are_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidConfiguration, match=problem) as error:
        logins_of(config(text))
    assert "hunter2" not in str(error.value)


def test_a_jaas_configuration_without_listener_or_mechanism_is_reported() -> None:
    given = config(
        SCRAM + OWN + "sasl.jaas.config=x\nlistener.name.in.sasl.jaas.config=x\n"
        "listener.name.nowhere.plain.sasl.jaas.config=x\nlistener.name.out.gssapi.sasl.jaas.config=x\n"
    )
    assert [sentence.partition(" ")[0] for sentence in ignored_jaas(given)] == [
        "listener.name.in.sasl.jaas.config",
        "listener.name.nowhere.plain.sasl.jaas.config",
        "listener.name.out.gssapi.sasl.jaas.config",
        "sasl.jaas.config",
    ]


LOGIN = {
    "security.protocol": "sasl_plaintext",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": f'{PLAIN_MODULE} required username="a" password="hunter2";',
}


def test_a_clients_properties_are_read() -> None:
    assert client_security({}) == ClientSecurity()
    assert client_security({"sasl.jaas.config": "unused"}) == ClientSecurity()
    login = ClientLogin(PLAIN, "a", "hunter2")
    assert client_security(LOGIN) == ClientSecurity("SASL_PLAINTEXT", None, login)
    token = f'{SCRAM_MODULE} required username="id" password="hmac" tokenauth=true;'
    by_token = client_security(LOGIN | {"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": token}).login
    assert by_token is not None
    assert by_token.by_token


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"security.protocol": "TLS"}, "security.protocol is 'TLS': it must be one of PLAINTEXT, SSL, SASL_PLAINTEXT"),
        ({"security.protocol": "SASL_SSL", "ssl.keystore.password": "hunter2"}, r"ssl\.\*: SSL key store"),
        ({"sasl.mechanism": "GSSAPI"}, "sasl.jaas.config is for the mechanism GSSAPI"),
        ({"sasl.jaas.config": ""}, "sasl.jaas.config is missing"),
        ({"sasl.jaas.config": "hunter2 junk"}, "sasl.jaas.config its beginning isn't one of Kafka's login modules"),
        ({"sasl.mechanism": "SCRAM-SHA-512"}, "SCRAM-SHA-512 needs"),
        ({"sasl.login.class": "x.Y"}, "sasl.login.class names Java code"),
    ],
)
def test_wrong_client_properties_are_refused_by_name(change: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as error:
        client_security(LOGIN | change)
    assert "hunter2" not in str(error.value)
