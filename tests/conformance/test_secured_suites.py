"""Other projects' suites against brokers whose listeners ask for TLS, for logins, and for rights.

Those of librdkafka need Cargo, CMake and a C++ compiler, that of franz-go Go, those of aiokafka a checkout of its
repository. All of them take minutes, and run with OTTLA_CRASH=long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conformance.conftest import SETTINGS
from tests.conformance.test_kafka_python import DIFFERENCES
from tests.conformance.test_transaction_suites import BROKERS
from tests.crash.faults import MINUTES
from tests.peers import aiokafka_suite, franz_go_suite, kafka_python_suite, librdkafka_suite
from tests.peers.aiokafka_suite import SecuredBroker
from tests.peers.certificates import Authority, certificate, in_all_formats
from tests.peers.kafka_python_suite import Listeners
from tests.peers.proxy import Proxies
from tests.peers.secured import EVERYTHING, MODULES, PROTOCOLS, Secured, secured_brokers
from tests.peers.token_endpoint import AUDIENCE, token_endpoint

pytestmark = MINUTES

USER = "suite"
PASSWORDS = {USER: "suites-secret"}
KEY_PASSWORD = "password-of-the-key"
SESSION_MS = 10_000  # a login's session in the tests of re-authentication, as in librdkafka's own runs
OAUTHBEARER = "listener_name_secure_oauthbearer"
VALIDATOR = "OAuthBearerValidatorCallbackHandler"
# The first connects by a function of its own, and crashes where TLS is set; the second reads franz-go's source.
FRANZ_GO_LEFT_OUT = "^(TestIssue769|TestOptValuesCoversEveryOption)$"
# librdkafka's tests of rights begin with a cluster where everything is allowed, and deny some of it.
OPEN = SETTINGS | {"allow_everyone_if_no_acl_found": "true"}


def failed(outcomes: dict[str, str], passed: tuple[str, ...]) -> list[str]:
    """The outcomes that aren't successes."""
    return [f"{name}: {outcome}" for name, outcome in outcomes.items() if outcome not in passed]


def librdkafka(
    secured: Secured,
    listener: str,
    numbers: Sequence[str],
    more: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Runs librdkafka's tests at a listener, with `more` settings, but for those that need more brokers. Of each number
    a test has to pass, and none may fail; the suite skips some parts itself."""
    too_few = librdkafka_suite.NEED_THREE_BROKERS if len(secured.cluster.brokers) < 3 else ()
    numbers = [number for number in numbers if number not in too_few]
    settings = secured.librdkafka(listener, USER) | dict(more or {})
    outcomes = librdkafka_suite.run(secured.cluster.further(listener), numbers, settings, environment)
    assert failed(outcomes, ("PASSED", "SKIPPED")) == []
    assert {name[:4] for name, outcome in outcomes.items() if outcome == "PASSED"} == set(numbers)


@contextmanager
def slowed(secured: Secured, listener: str) -> Iterator[str]:
    """Other addresses of a listener, by which each answer takes 50 ms longer."""
    proxies = Proxies()
    try:
        routes = [proxies.route(address) for address in secured.cluster.further(listener).split(",")]
        for route in routes:
            route.delay(0, 0.05)
        yield ",".join(route.endpoint for route in routes)
    finally:
        proxies.close()


@BROKERS
@pytest.mark.timeout(1200)
def test_librdkafka_logs_in(tmp_path: Path, brokers: int) -> None:
    """Changed credentials (0135), callbacks in the background (0128), sessions that end (0142), with each mechanism."""
    settings = OPEN | {"connections_max_reauth_ms": str(SESSION_MS)}
    with secured_brokers(tmp_path, brokers, PASSWORDS, **settings) as secured:
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
            librdkafka(secured, "SECURE", librdkafka_suite.LOGINS, {"sasl.mechanism": mechanism})


@BROKERS
@pytest.mark.timeout(600)
def test_librdkafka_shows_certificates(tmp_path: Path, brokers: int) -> None:
    """Keys and authorities in all formats, and brokers that a client doesn't trust (0097).

    It runs over SASL_SSL, where a client's certificate means nothing. At a listener that takes certificates the test
    asks for a client that keeps a certificate back of which the broker doesn't know the authority. Clients learn the
    authorities from the broker, and Ottla's broker can't name them (docs/security.md).

    Each answer takes a while, because librdkafka 2.12 reports a certificate as a failure of the transport if the
    broker's answer is there before it waits for the answer.
    """
    unused = Authority(tmp_path / "unused")
    with secured_brokers(tmp_path, brokers, PASSWORDS, **OPEN) as secured, slowed(secured, "SECURE") as bootstrap:
        trust = secured.authority.trust
        files = in_all_formats(secured.key(USER), trust, KEY_PASSWORD)
        (tmp_path / "all.pem").write_bytes(unused.trust.read_bytes() + trust.read_bytes())
        (tmp_path / "ca.der").write_bytes(certificate(trust))
        environment = {
            "SSL_ca_pem": trust,
            "SSL_ca_der": tmp_path / "ca.der",
            "SSL_all_cas_pem": tmp_path / "all.pem",
            "SSL_pub_pem": files["certificate.pem"],
            "SSL_pub_der": files["certificate.der"],
            "SSL_priv_pem": files["key.pem"],
            "SSL_priv_der": files["key.der"],
            "SSL_pkcs": files["p12"],
            "SSL_password": KEY_PASSWORD,
        }
        own = {
            "ssl.certificate.location": str(files["certificate.pem"]),
            "ssl.key.location": str(files["key.pem"]),
            "ssl.key.password": KEY_PASSWORD,
        }
        settings = secured.librdkafka("SECURE", USER) | own
        given = {name: str(value) for name, value in environment.items()}
        outcomes = librdkafka_suite.run(bootstrap, librdkafka_suite.CERTIFICATES, settings, given)
    assert outcomes == {"0097_ssl_verify": "PASSED", "0097_ssl_verify_local": "PASSED"}


@BROKERS
@pytest.mark.timeout(600)
def test_librdkafka_is_denied(tmp_path: Path, brokers: int) -> None:
    """Topics that a producer may no longer write, and a consumer no longer read (0115, 0119)."""
    with secured_brokers(tmp_path, brokers, PASSWORDS, **OPEN) as secured:
        outcomes = librdkafka_suite.run(secured.cluster.bootstrap, librdkafka_suite.RIGHTS)
    assert failed(outcomes, ("PASSED",)) == []
    assert len(outcomes) == len(librdkafka_suite.RIGHTS)


@pytest.mark.timeout(900)
def test_librdkafka_fetches_tokens(tmp_path: Path) -> None:
    """Tokens from an identity provider: by a secret, by signed assertions, expired and malformed ones (0126), and
    sessions that end with them (0142). The tests' topics have three replicas."""
    if not librdkafka_suite.fetches_tokens():
        pytest.skip("needs libcurl's headers when librdkafka is built (apt-get install libcurl4-openssl-dev)")
    with token_endpoint(tmp_path / "provider") as provider:
        settings = OPEN | {
            "connections_max_reauth_ms": str(SESSION_MS),
            "listener_name_secure_sasl_enabled_mechanisms": "PLAIN,OAUTHBEARER",
            f"{OAUTHBEARER}_sasl_server_callback_handler_class": f"{MODULES}.oauthbearer.{VALIDATOR}",
            f"{OAUTHBEARER}_sasl_jaas_config": f"{MODULES}.oauthbearer.OAuthBearerLoginModule required;",
            f"{OAUTHBEARER}_sasl_oauthbearer_jwks_endpoint_url": provider.jwks,
            f"{OAUTHBEARER}_sasl_oauthbearer_expected_audience": AUDIENCE,
        }
        with secured_brokers(tmp_path, 3, PASSWORDS, **settings) as secured:
            numbers = librdkafka_suite.TOKENS
            librdkafka(secured, "SECURE", numbers, provider.settings(), provider.environment())


@BROKERS
@pytest.mark.timeout(1800)
def test_librdkafka_works_as_ever(tmp_path: Path, brokers: int) -> None:
    """Producers, consumers and groups, as without TLS and logins. 0089 and 0118 expect members to join together."""
    settings = OPEN | {"group_initial_rebalance_delay_ms": "3000"}
    with secured_brokers(tmp_path, brokers, PASSWORDS, **settings) as secured:
        librdkafka(secured, "SECURE", librdkafka_suite.ORDINARY)


@BROKERS
@pytest.mark.timeout(1500)
def test_librdkafka_administers(tmp_path: Path, brokers: int) -> None:
    """Topics, configurations, groups, ACLs, users, and the operations that somebody is allowed (0081). After each
    change of ACLs the test waits for as long as it may take; five times as long would be ten minutes in all."""
    with secured_brokers(tmp_path, brokers, PASSWORDS, **OPEN) as secured:
        librdkafka(secured, "SECURE", librdkafka_suite.ADMINISTRATION, {"test.timeout.multiplier": "1"})


@BROKERS
@pytest.mark.timeout(1200)
def test_franz_go(tmp_path: Path, brokers: int) -> None:
    """All tests of its client, by a certificate whose user has rights on everything, and those of SCRAM."""
    with secured_brokers(tmp_path, brokers, PASSWORDS, **SETTINGS) as secured:
        secured.grant(f"User:{USER}", *EVERYTHING)
        key = secured.key(USER)
        environment = {
            "KGO_TEST_TLS": f"ca:{secured.authority.trust},cert:{key},key:{key}",
            "KGO_TEST_SCRAM": f"{USER}:{PASSWORDS[USER]}:512",
            "KGO_TEST_SCRAM_SEEDS": secured.cluster.further("LOGIN"),
        }
        bootstrap = secured.cluster.further("TLS")
        outcomes, output = franz_go_suite.run(bootstrap, brokers, ".", 5000, 5, 900, environment, FRANZ_GO_LEFT_OUT)
    assert [name for name, outcome in outcomes.items() if outcome == "FAIL"] == [], output[-12_000:]
    assert outcomes["TestSCRAMAuth"] == outcomes["TestSCRAMAuthBadCredentials"] == "PASS"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_kafka_python(tmp_path: Path, mechanism: str) -> None:
    """All tests over SASL_SSL; those that ask for SSL or SASL_PLAINTEXT, over these."""
    passwords = {kafka_python_suite.USER: kafka_python_suite.PASSWORD}
    with secured_brokers(tmp_path, 1, passwords, **SETTINGS, ssl_client_auth="requested") as secured:
        secured.grant(f"User:{kafka_python_suite.USER}", *EVERYTHING)
        (tmp_path / "ca-cert").write_bytes(secured.authority.trust.read_bytes())
        addresses = {protocol: secured.cluster.further(name) for name, protocol in PROTOCOLS.items()}
        listeners = Listeners(addresses, tmp_path, mechanism=mechanism)
        outcomes = kafka_python_suite.run(addresses["SASL_SSL"], listeners=listeners)
    assert {name for name, outcome in outcomes.items() if outcome.startswith("failed")} == set(DIFFERENCES), outcomes
    assert len([name for name in outcomes if name.startswith(("TestSSLConnection::", "test_sasl_"))]) == 11


@pytest.mark.timeout(900)
def test_aiokafka(tmp_path: Path) -> None:
    """The tests of SASL_PLAINTEXT by PLAIN and SCRAM, of rights that change, and of SSL. They count on topics of two
    partitions."""
    source = aiokafka_suite.checkout()
    settings = OPEN | {"num_partitions": "2"}
    with secured_brokers(tmp_path, 1, aiokafka_suite.USERS, **settings) as secured:
        files = in_all_formats(secured.key("client"), secured.authority.trust, aiokafka_suite.KEY_PASSWORD)
        for name, file in (("ca.crt", secured.authority.trust), ("client.crt", files["certificate.pem"])):
            (tmp_path / name).write_bytes(file.read_bytes())
        (tmp_path / "client.key").write_bytes(files["key.pem"].read_bytes())
        ports = {protocol: int(secured.cluster.further(name).split(":")[1]) for name, protocol in PROTOCOLS.items()}
        admin = {"bootstrap.servers": secured.cluster.further("SECURE"), **secured.librdkafka("SECURE", "admin")}
        broker = SecuredBroker(ports, admin, str(tmp_path))
        outcomes = aiokafka_suite.run(secured.cluster.bootstrap, source, aiokafka_suite.SECURED, broker)
    assert failed(outcomes, ("passed", "skipped")) == []
    assert len(outcomes) > 15
