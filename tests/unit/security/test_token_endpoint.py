"""Tokens from an identity provider: settings, requests and answers, renewals and attempts, and a provider over HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ottla.protocol.sasl import LoginRefused
from ottla.security.client_settings import client_security
from ottla.security.jaas import OAUTHBEARER_MODULE
from ottla.security.listener_logins import own_login
from ottla.security.preparation import begin_login, begin_login_soon
from ottla.security.token_claims import encoded
from ottla.security.token_endpoint import Renewal, TokenEndpoint, TokenRefused, read_answer
from ottla.security.token_fetching import TokenCache, ask_over_http
from ottla.settings.config import BrokerConfig
from tests.peers.certificates import Authority

URL = "sasl.oauthbearer.token.endpoint.url"
SECRET = "the-client-secret"


def properties(url: str, options: str = f'clientId="app" clientSecret="{SECRET}"', **more: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{OAUTHBEARER_MODULE} required {options};",
        URL: url,
    } | {name.replace("_", "."): value for name, value in more.items()}


def endpoint(url: str = "https://id.example/token", **more: str) -> TokenEndpoint:
    login = client_security(properties(url, **more)).login
    assert login is not None
    assert login.token_endpoint is not None
    return login.token_endpoint


def token(expires_s: float) -> str:
    return f"{encoded({'alg': 'none'})}.{encoded({'sub': 'app', 'exp': expires_s})}."


def test_the_newer_settings_come_before_the_older_options() -> None:
    old = endpoint(options=f'clientId="a b" clientSecret="{SECRET}" scope="one two"')
    assert (old.client_id, old.client_secret.value, old.scope) == ("a b", SECRET, "one two")
    assert old.body() == b"grant_type=client_credentials&scope=one+two"
    assert old.headers()["Authorization"] == "Basic YSBiOnRoZS1jbGllbnQtc2VjcmV0"
    new = endpoint(
        sasl_oauthbearer_client_credentials_client_id="new",
        sasl_oauthbearer_client_credentials_client_secret="newer",
        sasl_oauthbearer_scope="wide",
        sasl_login_read_timeout_ms="1500",
    )
    assert (new.client_id, new.client_secret.value, new.scope, new.read_s) == ("new", "newer", "wide", 1.5)
    assert (new.tls is not None, endpoint("http://id.example/token").tls) == (True, None)
    urlencoded = endpoint(options='clientId="a b" clientSecret="c"', sasl_oauthbearer_header_urlencode="true")
    assert urlencoded.headers()["Authorization"] == "Basic YStiOmM="


def test_a_broker_logs_in_at_others_by_the_settings_of_its_listener() -> None:
    prefix = "listener.name.in.oauthbearer"
    config = BrokerConfig.from_sources(
        "node.id=0\nlisteners=IN://:1\nlistener.security.protocol.map=IN:SASL_PLAINTEXT\n"
        "inter.broker.listener.name=IN\nsasl.mechanism.inter.broker.protocol=OAUTHBEARER\n"
        f"{prefix}.sasl.jaas.config={OAUTHBEARER_MODULE} required;\n{prefix}.{URL}=https://id.example/t\n"
        f"{prefix}.sasl.oauthbearer.client.credentials.client.id=broker\n"
        f"{prefix}.sasl.oauthbearer.client.credentials.client.secret={SECRET}\n"
    )
    login = own_login(config)
    assert login is not None
    assert login.token_endpoint is not None
    assert (login.token_endpoint.client_id, login.token_endpoint.client_secret.value) == ("broker", SECRET)
    assert SECRET not in repr(login)


@pytest.mark.parametrize(
    ("url", "options", "why"),
    [
        ("ftp://id.example/t", f'clientId="a" clientSecret="{SECRET}"', "must begin with file:, http:// or https://"),
        ("https:///t", f'clientId="a" clientSecret="{SECRET}"', "must begin with"),
        ("https://id.example/t", f'clientSecret="{SECRET}"', "needs sasl.oauthbearer.client.credentials.client.id"),
        ("https://id.example/t", 'clientId="a"', "client.secret, or clientId and clientSecret"),
        ("https://id.example/t", f'clientId="a" clientSecret="{SECRET}" ssl.truststore.type="x"', "ssl.* in sasl.jaas"),
    ],
)
def test_settings_that_give_no_token(url: str, options: str, why: str) -> None:
    with pytest.raises(ValueError, match=r"sasl\.jaas\.config") as error:
        client_security(properties(url, options))
    assert why in str(error.value)
    assert SECRET not in str(error.value)


def test_the_time_of_a_renewal() -> None:
    usual = Renewal(0.8, 0.05, 60, 300)
    assert usual.at(0, 10_000, 0) == 8000
    assert usual.at(0, 10_000, 1) == 8500
    assert usual.at(1000, 1000 + 1000, 0) == 1700, "300 s before the end"
    assert usual.at(0, 300, 0) == 240, "a life too short for the pauses at both ends"
    assert Renewal(0.5, 0, 60, 300).at(0, 400, 0) == 100
    assert Renewal(0.1, 0, 60, 300).at(0, 400, 0) == 60


def test_answers() -> None:
    found = read_answer(200, json.dumps({"access_token": token(5000)}).encode(), 1000)
    assert (found.token, found.expires_s) == (token(5000), 5000)
    assert token(5000) not in repr(found)
    opaque = json.dumps({"access_token": " opaque ", "expires_in": 60}).encode()
    assert read_answer(200, opaque, 1000).expires_s == 1060
    assert read_answer(200, b'{"access_token": "opaque"}', 1000).expires_s is None
    for status, body, final, why in (
        (401, b'{"error": "invalid_client"}', True, "HTTP status 401 (invalid_client)"),
        (400, f'{{"error": "{SECRET} and more"}}'.encode(), True, "HTTP status 400"),
        (503, b"busy", False, "HTTP status 503"),
        (302, b"", False, "HTTP status 302"),
        (200, b"{}", False, "no access_token"),
        (200, b'{"access_token": "a\\u0001auth=b"}', False, "no access_token"),
        (200, b"[" * 100_000, False, "no access_token"),
    ):
        with pytest.raises(TokenRefused, match=r"HTTP|no access") as refused:
            read_answer(status, body, 0)
        assert (refused.value.final, why in str(refused.value)) == (final, True)
        assert SECRET not in str(refused.value)


class Provider:
    """A provider whose clock and answers a test sets. Each answer is a life in s, or an error."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.now_s = 1000.0
        self.slept: list[float] = []
        self.cache = TokenCache(endpoint(), self.ask, lambda: self.now_s, self.sleep)

    def ask(self, asked: TokenEndpoint) -> tuple[int, bytes]:
        self.asked += 1
        answer = self.answers.pop(0) if self.answers else OSError("gone")
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, tuple):
            return answer
        return 200, json.dumps({"access_token": token(self.now_s + answer)}).encode()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


def test_a_token_is_kept_until_its_renewal() -> None:
    provider = Provider(10_000, 10_000)
    first = provider.cache.token()
    provider.now_s += 7000
    assert (provider.cache.token(), provider.asked, provider.cache.fresh) == (first, 1, True)
    provider.now_s += 1600
    assert not provider.cache.fresh
    assert (provider.cache.token() != first, provider.asked) == (True, 2)


def test_a_renewal_that_fails_leaves_the_token_in_use_until_it_expires(caplog: pytest.LogCaptureFixture) -> None:
    provider = Provider(10_000, (401, b""))
    first = provider.cache.token()
    provider.now_s += 9000
    assert provider.cache.token() == first
    assert "https://id.example:443/token: HTTP status 401; the present one is used" in caplog.text
    provider.now_s += 1000
    with pytest.raises(LoginRefused, match=r"no token can be fetched from https://id\.example:443/token: gone"):
        provider.cache.token()


def test_attempts_are_repeated_for_a_while_unless_they_are_of_no_use() -> None:
    provider = Provider(OSError("busy"), (503, b""), 10_000)
    provider.cache.token()
    assert (provider.asked, provider.slept) == (3, [0.1, 0.2])
    hopeless = Provider((401, b""))
    with pytest.raises(LoginRefused, match="401"):
        hopeless.cache.token()
    assert (hopeless.asked, hopeless.slept) == (1, [])
    dead = Provider()
    with pytest.raises(LoginRefused):
        dead.cache.token()
    assert sum(dead.slept) == pytest.approx(10.0)


def test_a_token_without_an_end_serves_one_login() -> None:
    opaque = 200, b'{"access_token": "opaque"}'
    provider = Provider(opaque, opaque)
    assert provider.cache.token() == provider.cache.token() == "opaque"
    assert provider.asked == 2


def test_threads_share_a_fetch() -> None:
    provider = Provider(10_000)
    threads = [threading.Thread(target=provider.cache.token) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert provider.asked == 1


def test_a_failed_renewal_is_repeated_only_after_a_pause() -> None:
    provider = Provider(10_000, (401, b""), (401, b""))
    first = provider.cache.token()
    provider.now_s += 9000
    for _ in range(5):
        assert provider.cache.token() == first
    assert provider.asked == 2
    provider.now_s += endpoint().backoff_max_s
    assert (provider.cache.token(), provider.asked) == (first, 3)


def test_a_failure_without_a_token_is_told_to_all_who_ask_soon() -> None:
    provider = Provider((401, b""), 10_000)
    for _ in range(5):
        with pytest.raises(LoginRefused, match="401"):
            provider.cache.token()
    assert provider.asked == 1
    provider.now_s += 1
    assert provider.cache.token() == token(provider.now_s + 10_000)


class Held(Provider):
    """A provider that answers when a test lets it."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(*answers)
        self.answers_now = threading.Event()
        self.threads: list[str] = []

    def ask(self, asked: TokenEndpoint) -> tuple[int, bytes]:
        self.threads.append(threading.current_thread().name)
        assert self.answers_now.wait(10)
        return super().ask(asked)


def test_tasks_share_a_fetch_in_a_thread_of_its_own_and_one_that_is_cancelled_leaves_it_to_the_others() -> None:
    async def main() -> None:
        provider = Held(10_000)
        waiting = [asyncio.create_task(provider.cache.token_soon()) for _ in range(100)]
        await asyncio.sleep(0)
        waiting.pop(0).cancel()
        provider.answers_now.set()
        assert len(set(await asyncio.gather(*waiting))) == 1
        assert provider.threads == ["ottla-token"]

    asyncio.run(main())


def test_others_use_the_present_token_while_one_renews_it() -> None:
    provider = Held(10_000, 10_000)
    provider.answers_now.set()
    first = provider.cache.token()
    provider.now_s += 9000
    provider.answers_now.clear()

    async def main() -> str:
        renewing = asyncio.create_task(provider.cache.token_soon())
        await asyncio.sleep(0)
        assert provider.cache.token() == first
        provider.answers_now.set()
        return await renewing

    assert asyncio.run(main()) != first
    assert provider.asked == 2


@contextmanager
def served(answer: tuple[int, bytes], tls: Path | None = None) -> Iterator[tuple[str, list[tuple[str, str, bytes]]]]:
    """(URL, requests as (path, authorization, body)) of a provider on the loopback interface."""
    got: list[tuple[str, str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, self.headers["Authorization"], body))
            self.send_response(answer[0])
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.end_headers()
            self.wfile.write(answer[1])

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}/token?tenant=a", got
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_login_takes_a_token_over_http() -> None:
    with served((200, json.dumps({"access_token": token(4_000_000_000)}).encode())) as (url, got):
        login = client_security(properties(url)).login
        assert login is not None
        for _ in range(2):
            message = begin_login(login)().first()
            assert message == f"n,,\x01auth=Bearer {token(4_000_000_000)}\x01\x01".encode()
        assert asyncio.run(begin_login_soon(login)).first() == message
    assert got == [("/token?tenant=a", "Basic YXBwOnRoZS1jbGllbnQtc2VjcmV0", b"grant_type=client_credentials")]


def test_an_https_endpoint_is_trusted_by_the_options_of_the_jaas_configuration(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    options = f'clientId="app" clientSecret="{SECRET}" ssl.truststore.type="PEM"'
    options += f' ssl.truststore.location="{authority.trust}"'
    with served((200, b'{"access_token": "x"}'), authority.issue("provider")) as (url, got):
        assert ask_over_http(endpoint(url, options=options)) == (200, b'{"access_token": "x"}')
        with pytest.raises(ssl.SSLCertVerificationError):
            ask_over_http(endpoint(url))
    assert len(got) == 1


def test_a_redirection_isnt_followed_and_no_secret_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), served((302, b"")) as (url, got):
        cache = TokenCache(endpoint(url, sasl_login_retry_backoff_max_ms="1"), ask_over_http)
        with pytest.raises(LoginRefused, match="HTTP status 302") as refused:
            cache.token()
    assert len(got) >= 1
    assert "tenant" not in str(refused.value)
    assert SECRET not in caplog.text + str(refused.value)
