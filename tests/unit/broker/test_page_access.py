"""Who may read the HTTP pages: each protocol of their listener, over real connections."""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.authorizer import AUDIT_LOGGER, authorizer_of
from ottla.broker.login.mechanisms import Mechanisms
from ottla.broker.page_access import LOGINS_MAX, PageAccess
from ottla.metadata.image import Changed, Image
from ottla.net.http import CONNECTIONS_MAX, HttpServer, Request, Response
from ottla.protocol.sasl import SCRAM_SHA_256
from ottla.security import scram
from ottla.security.listener_logins import check_logins, page_logins
from ottla.security.tls_listeners import TlsListeners
from ottla.settings.config import BrokerConfig, InvalidConfiguration
from tests.peers.certificates import Authority
from tests.unit.broker.login.test_login import scram_keys

AUTHORIZER = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
JAAS = (
    "listener.name.http.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required"
    ' user_alice="alice-secret" user_bob="bob-secret";\n'
)
LOGIN = f"ottla.http.security.protocol=SASL_PLAINTEXT\nsasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256\n{JAAS}"
PATHS = ("/metrics", "/healthz", "/readyz", "/v1/restart-risk")


async def page(request: Request) -> Response:
    return Response(200, f"{request.path} for {request.client_host}\n".encode())


class Scene:
    """The pages of a broker with these settings, and a client of them."""

    def __init__(self, port: int, access: PageAccess, tls: TlsListeners, image: Any) -> None:
        self.port = port
        self.access = access
        self.tls = tls
        self.image = image

    async def get(
        self, path: str, login: str | None = None, tls: ssl.SSLContext | None = None, authorization: str = ""
    ) -> tuple[int, str]:
        """(status, the whole answer); (0, "") for a connection that is closed without an answer. `login` is
        user:password."""
        name = None if tls is None else "localhost"
        if login is not None:
            authorization = "Basic " + base64.b64encode(login.encode()).decode()
        head = f"Authorization: {authorization}\r\n" if authorization else ""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=tls, server_hostname=name)
            writer.write(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
            answer = (await asyncio.wait_for(reader.read(), 10)).decode()
        except (ConnectionError, ssl.SSLError):
            return 0, ""
        writer.close()
        return int(answer.split(" ")[1]) if answer else 0, answer

    async def statuses(self, **how: Any) -> list[int]:
        return [(await self.get(path, **how))[0] for path in PATHS]


def play(settings: str, act: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        config = BrokerConfig.from_sources("node.id=0\nconnection.failed.authentication.delay.ms=10\n" + settings)
        image: Any = SimpleNamespace(
            scram={("carol", SCRAM_SHA_256): scram_keys(SCRAM_SHA_256, "carol-secret")},
            login_secret=None,
            cluster="known",
        )
        tls = TlsListeners(serves=True)
        await tls.load_pages(config)
        authorizer = authorizer_of(config, lambda: image)
        authorizer.changed(Image(), Changed())
        mechanisms = Mechanisms(lambda: image, lambda: 0, Random(1))
        access = PageAccess(lambda: config, tls, mechanisms, authorizer, lambda: image)
        server = HttpServer({("GET", path): page for path in PATHS}, access)
        try:
            async with asyncio.timeout(30):
                await act(Scene(await server.start("127.0.0.1", 0), access, tls, image))
        finally:
            await server.stop()

    asyncio.run(main())


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def encrypted(authority: Authority, protocol: str = "SSL", **more: str) -> str:
    settings = {
        "ottla.http.security.protocol": protocol,
        "listener.name.http.ssl.keystore.type": "PEM",
        "listener.name.http.ssl.keystore.location": str(authority.issue("pages")),
        "listener.name.http.ssl.truststore.type": "PEM",
        "listener.name.http.ssl.truststore.location": str(authority.trust),
    } | {name.replace("_", "."): value for name, value in more.items()}
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def client(authority: Authority, certificate: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.trust))
    if certificate is not None:
        context.load_cert_chain(str(certificate))
    return context


def test_without_settings_everybody_reads_every_page_even_where_an_authorizer_runs() -> None:
    async def act(scene: Scene) -> None:
        assert await scene.statuses() == [200, 200, 200, 200]
        assert (await scene.get("/metrics"))[1].endswith("/metrics for 127.0.0.1\n")

    play("", act)
    play(AUTHORIZER, act)


def test_readers_log_in_by_the_mechanisms_of_the_listener(caplog: pytest.LogCaptureFixture) -> None:
    async def act(scene: Scene) -> None:
        assert await scene.statuses() == [401, 200, 200, 401]
        _, answer = await scene.get("/metrics")
        assert 'WWW-Authenticate: Basic realm="ottla", charset="UTF-8"\r\n' in answer
        assert answer.endswith("\r\n\r\nauthentication is required\n")
        assert await scene.statuses(login="alice:alice-secret") == [200, 200, 200, 200]
        assert await scene.statuses(login="carol:carol-secret") == [200, 200, 200, 200]
        assert (scene.access.counters.succeeded, scene.access.counters.failed) == (4, 0)

    play(LOGIN, act)
    assert "secret" not in caplog.text


def test_passwords_of_readers_arent_kept() -> None:
    async def act(scene: Scene) -> None:
        before = scram._kept_salted_password.cache_info()
        assert await scene.statuses(login="carol:wrong-secret") == [401, 200, 200, 401]
        assert await scene.statuses(login="carol:carol-secret") == [200, 200, 200, 200]
        assert scram._kept_salted_password.cache_info() == before

    play(LOGIN, act)


def test_nobody_is_known_before_the_metadata_is_read() -> None:
    async def act(scene: Scene) -> None:
        scene.image.cluster = None
        assert await scene.statuses(login="alice:alice-secret") == [503, 200, 200, 503]

    play(LOGIN, act)


@pytest.mark.parametrize("login", ["alice:wrong-secret", "carol:wrong-secret", "nobody:any-secret", "a\0b:x-secret"])
def test_an_unknown_user_is_told_the_same_as_one_with_a_wrong_password(
    login: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(scene: Scene) -> None:
        assert await scene.statuses(login=login) == [401, 200, 200, 401]
        answer = (await scene.get("/metrics", login=login))[1]
        assert answer.endswith("\r\n\r\nauthentication failed\n")
        assert scene.access.counters.failed == 3

    with caplog.at_level(logging.INFO):
        play(LOGIN, act)
    assert "the login of a page's reader at 127.0.0.1 is refused: PLAIN: " in caplog.text
    assert "secret" not in caplog.text


def test_refused_logins_leave_room_for_the_probes() -> None:
    async def act(scene: Scene) -> None:
        waiting = [
            asyncio.create_task(scene.get("/metrics", login="alice:wrong-secret")) for _ in range(CONNECTIONS_MAX - 4)
        ]
        await asyncio.sleep(0.3)
        assert (await asyncio.wait_for(scene.get("/healthz"), 1))[0] == 200
        statuses = [status for status, _ in await asyncio.gather(*waiting)]
        assert (statuses.count(401), statuses.count(503)) == (LOGINS_MAX, len(waiting) - LOGINS_MAX)
        assert await scene.statuses(login="alice:alice-secret") == [200, 200, 200, 200]

    play(f"{LOGIN}connection.failed.authentication.delay.ms=1500\n", act)


@pytest.mark.parametrize(
    "authorization", ["Basic", "Basic !!", "Basic ä", "Basic YWxpY2U=", "Bearer abc", "Basic gIE6gA==", "x"]
)
def test_a_login_that_cant_be_read_is_none(authorization: str) -> None:
    async def act(scene: Scene) -> None:
        status, answer = await scene.get("/metrics", authorization=authorization)
        assert (status, scene.access.counters.failed) == (401, 0)
        assert "authentication is required" in answer

    play(LOGIN, act)


def test_readers_need_describe_on_the_cluster_where_an_authorizer_runs(caplog: pytest.LogCaptureFixture) -> None:
    async def act(scene: Scene) -> None:
        assert await scene.statuses(login="alice:alice-secret") == [200, 200, 200, 200]
        assert await scene.statuses(login="bob:bob-secret") == [403, 200, 200, 403]

    with caplog.at_level(logging.INFO, AUDIT_LOGGER):
        play(f"{LOGIN}{AUTHORIZER}super.users=User:alice\n", act)
    denied = [record.getMessage() for record in caplog.records if record.name == AUDIT_LOGGER]
    assert denied[0] == (
        "Principal = User:bob is Denied operation = DESCRIBE from host = 127.0.0.1 on resource ="
        " Cluster:LITERAL:kafka-cluster for request = /metrics with resourceRefCount = 1 based on rule DefaultDeny"
    )


def test_encrypted_pages_without_certificates_of_readers(authority: Authority) -> None:
    async def act(scene: Scene) -> None:
        assert await scene.statuses(tls=client(authority)) == [200, 200, 200, 200]
        assert await scene.statuses() == [0, 0, 0, 0], "a reader without TLS"
        own = authority.issue("own", common_name="prometheus")
        assert await scene.statuses(tls=client(authority, own)) == [200, 200, 200, 200]

    play(encrypted(authority), act)


def test_a_certificate_is_required_of_all_pages_but_the_open_ones(authority: Authority, tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        assert await scene.statuses(tls=client(authority)) == [403, 200, 200, 403]
        known, unknown = (authority.issue(name, common_name=name) for name in ("prometheus", "eve"))
        assert await scene.statuses(tls=client(authority, known)) == [200, 200, 200, 200]
        assert await scene.statuses(tls=client(authority, unknown)) == [403, 200, 200, 403]
        foreign = client(authority, Authority(tmp_path / "other").issue("foreign", common_name="prometheus"))
        assert await scene.statuses(tls=foreign) == [0, 0, 0, 0], "TLS refuses a certificate of another authority"

    rights = f"{AUTHORIZER}super.users=User:prometheus\n"
    rules = {"listener.name.http.ssl.principal.mapping.rules": "RULE:^CN=(.*?),.*$/$1/"}
    play(encrypted(authority, listener_name_http_ssl_client_auth="required", **rules) + rights, act)


def test_a_certificate_says_nothing_where_readers_log_in(authority: Authority) -> None:
    async def act(scene: Scene) -> None:
        own = client(authority, authority.issue("own", common_name="alice"))
        assert await scene.statuses(tls=own) == [401, 200, 200, 401]
        assert await scene.statuses(tls=own, login="alice:alice-secret") == [200, 200, 200, 200]

    play(encrypted(authority, "SASL_SSL") + LOGIN.partition("\n")[2], act)


def test_a_required_certificate_is_asked_for_before_the_login(authority: Authority) -> None:
    async def act(scene: Scene) -> None:
        assert await scene.statuses(tls=client(authority), login="alice:alice-secret") == [403, 200, 200, 403]
        assert await scene.statuses(tls=client(authority), login="alice:wrong-secret") == [403, 200, 200, 403]
        assert (scene.access.counters.succeeded, scene.access.counters.failed) == (0, 0)
        own = client(authority, authority.issue("own", common_name="prometheus"))
        assert await scene.statuses(tls=own, login="alice:alice-secret") == [200, 200, 200, 200]
        assert await scene.statuses(tls=own) == [401, 200, 200, 401]

    settings = encrypted(authority, "SASL_SSL", listener_name_http_ssl_client_auth="required")
    play(settings + LOGIN.partition("\n")[2], act)


def test_renewed_certificates_are_in_force_at_once(authority: Authority) -> None:
    async def act(scene: Scene) -> None:
        assert (await scene.get("/healthz", tls=client(authority)))[0] == 200
        authority.issue("pages", "localhost", "127.0.0.1", "renewed.example")
        config = scene.access._config()
        await scene.tls.follow(config)
        _, writer = await asyncio.open_connection(
            "127.0.0.1", scene.port, ssl=client(authority), server_hostname="renewed.example"
        )
        writer.close()

    play(encrypted(authority), act)


def test_pages_offer_only_mechanisms_with_passwords() -> None:
    base = "node.id=0\nottla.http.security.protocol=SASL_SSL\n"
    oauth = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
    for settings, problem in (
        ("", "sasl.enabled.mechanisms=GSSAPI for the listener HTTP: Ottla doesn't have GSSAPI"),
        ("sasl.enabled.mechanisms=PLAIN\n", "listener.name.http.plain.sasl.jaas.config: is needed"),
        (
            f"sasl.enabled.mechanisms=OAUTHBEARER\nlistener.name.http.oauthbearer.sasl.jaas.config={oauth}\n",
            "the pages take users and passwords",
        ),
    ):
        config = BrokerConfig.from_sources(base + settings)
        with pytest.raises(InvalidConfiguration, match=problem):
            check_logins(config)
        logins, problems = page_logins(config)
        assert (logins is not None and not logins.session_ms_max, len(problems)) == (True, 1)
    logins, problems = page_logins(BrokerConfig.from_sources(base + "sasl.enabled.mechanisms=SCRAM-SHA-512\n"))
    assert (logins is not None, problems) == (True, [])
    assert page_logins(BrokerConfig.from_sources("node.id=0\n")) == (None, [])


def test_no_listener_of_clients_has_the_pages_name() -> None:
    settings = "node.id=0\nlisteners=HTTP://:1\nlistener.security.protocol.map=HTTP:PLAINTEXT\n"
    assert BrokerConfig.from_sources(settings).listeners.pages == "PLAINTEXT"
    with pytest.raises(InvalidConfiguration, match="names HTTP, which is the name of the pages' listener"):
        BrokerConfig.from_sources(settings + "ottla.http.security.protocol=ssl\n")
