"""Logins at a real listener: the order of requests before a login, its end, its failures, and hostile clients.

Each scene has a server on the loopback interface, whose usual dispatch answers each request by its API key.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.login import gate
from ottla.broker.login.conversation import Mechanism
from ottla.broker.login.logins import Logins
from ottla.broker.login.mechanisms import Mechanisms
from ottla.broker.login.own import connect_to_brokers
from ottla.metadata.model.users import ScramKeys
from ottla.net import logging_in
from ottla.net.connection import Connection
from ottla.net.logging_in import Begin, LoginFailed, logged_in
from ottla.net.server import Limits, Server
from ottla.net.streams import connect_tcp
from ottla.protocol.errors import ErrorCode
from ottla.protocol.frames import request_frame, response_body, response_frame
from ottla.protocol.messages import read_response, write_request
from ottla.protocol.sasl import OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, ClientExchange, LoggedIn, NotYet
from ottla.security.client_login import ClientLogin
from ottla.security.plain import PlainClient
from ottla.security.preparation import begin_login
from ottla.security.scram import ScramClient, credential_of, salted_password
from ottla.security.tls_listeners import TlsListeners
from ottla.settings.config import BrokerConfig
from tests.unit.security.test_token_endpoint import served, token
from tests.unit.waiting import until

SECRETS = ("alice-secret", "bob-secret", "wrong-secret")
HANDSHAKE, AUTHENTICATE, VERSIONS, METADATA = 17, 36, 18, 3
PROPERTIES = """
node.id=0
log.dirs=/nowhere
listeners=CLIENTS://127.0.0.1:0,OPEN://127.0.0.1:0
listener.security.protocol.map=CLIENTS:SASL_PLAINTEXT,OPEN:PLAINTEXT
inter.broker.listener.name=OPEN
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256
listener.name.clients.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
    user_alice="alice-secret" user_bob="bob-secret";
"""


def scram_keys(mechanism: str, password: str) -> ScramKeys:
    made = credential_of(mechanism, salted_password(mechanism, password, b"salt", 4096), b"salt", 4096)
    return ScramKeys(made.salt, made.stored_key, made.server_key, made.iterations)


@dataclass
class Scene:
    server: Server
    logins: Logins
    image: Any
    clock: SimpleNamespace
    served: list[tuple[int, str]] = field(default_factory=list)  # (API key, principal) of each usual request

    async def client(self, listener: str = "CLIENTS") -> Client:
        opened = self.server.listeners[listener]
        return Client(*await asyncio.open_connection(opened.host, opened.port))


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, key: int, version: int, **message: Any) -> None:
        body = write_request(key, version, message) if key in (HANDSHAKE, AUTHENTICATE, VERSIONS) else b""
        self.writer.write(request_frame(key, version, 7, "c", body))

    async def answer(self) -> bytes:
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def ask(self, key: int, version: int, **message: Any) -> Any:
        self.send(key, version, **message)
        frame = await self.answer()
        correlation_id, start = response_body(key, version, frame)
        assert correlation_id == 7
        return read_response(key, version, frame, start) if key in (HANDSHAKE, AUTHENTICATE) else frame[start:]

    async def closed(self) -> bytes:
        """The bytes that come until the server closes the connection."""
        async with asyncio.timeout(5):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    async def log_in(self, user: str = "alice", password: str = "alice-secret", mechanism: str = PLAIN) -> Any:
        exchange: Any = PlainClient(user, password)
        if mechanism != PLAIN:
            exchange = ScramClient(mechanism, user, password, "nonce")
        handshake = await self.ask(HANDSHAKE, 1, mechanism=mechanism)
        assert handshake.error_code == ErrorCode.none
        message = exchange.first()
        while message is not None:
            answer = await self.ask(AUTHENTICATE, 2, auth_bytes=message)
            if answer.error_code != ErrorCode.none:
                return answer
            message = exchange.next(answer.auth_bytes)
        return answer

    async def is_served(self) -> bool:
        return await self.ask(METADATA, 0) == b"served 3"


@asynccontextmanager
async def scene(more: str = "") -> AsyncIterator[Scene]:
    config = BrokerConfig.from_sources(PROPERTIES + more)
    image = SimpleNamespace(
        scram={("carol", SCRAM_SHA_256): scram_keys(SCRAM_SHA_256, "carol-secret")}, login_secret=None
    )
    clock = SimpleNamespace(now_ms=1_000_000)
    served: list[tuple[int, str]] = []

    def dispatch(connection: Connection, frame: bytearray, start: int, end: int) -> Any:
        key, version, correlation_id = struct.unpack_from(">hhi", frame, start)
        served.append((key, connection.principal))
        return [response_frame(key, version, correlation_id, b"served %d" % key)]

    mechanisms = Mechanisms(lambda: image, lambda: clock.now_ms, Random(1))
    logins = Logins(config, mechanisms, dispatch, lambda: clock.now_ms)
    server = Server(dispatch, Limits(), frozenset({0}), begin_login=logins.begin)
    for name in ("CLIENTS", "OPEN"):
        await server.listen(name, "127.0.0.1", 0)
    server.accept()
    try:
        async with asyncio.timeout(30):
            yield Scene(server, logins, image, clock, served)
    finally:
        await server.close()


def play(act: Callable[[Scene], Awaitable[None]], more: str = "") -> None:
    async def main() -> None:
        async with scene(more) as made:
            await act(made)

    asyncio.run(main())


@pytest.fixture(autouse=True)
def no_secret_is_logged(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.DEBUG)
    yield
    assert not [secret for secret in (*SECRETS, "carol-secret") if secret in caplog.text]


@pytest.mark.parametrize(
    ("user", "password", "mechanism"),
    [("alice", "alice-secret", PLAIN), ("bob", "bob-secret", PLAIN), ("carol", "carol-secret", SCRAM_SHA_256)],
)
def test_a_login_makes_the_user_the_connections_principal(user: str, password: str, mechanism: str) -> None:
    async def act(scene: Scene) -> None:
        client = await scene.client()
        assert await client.ask(VERSIONS, 0) == b"served 18"
        answer = await client.log_in(user, password, mechanism)
        assert (answer.error_code, answer.session_lifetime.total_seconds()) == (ErrorCode.none, 0)
        assert await client.is_served()
        assert scene.served == [(VERSIONS, "User:ANONYMOUS"), (METADATA, f"User:{user}")]
        assert scene.logins.counters["CLIENTS"].succeeded == 1

    play(act)


def test_a_listener_without_sasl_asks_for_no_login() -> None:
    async def act(scene: Scene) -> None:
        assert await (await scene.client("OPEN")).is_served()
        assert scene.served == [(METADATA, "User:ANONYMOUS")]

    play(act)


def test_messages_without_a_header_follow_a_handshake_of_version_0() -> None:
    async def act(scene: Scene) -> None:
        client = await scene.client()
        assert (await client.ask(HANDSHAKE, 0, mechanism=SCRAM_SHA_256)).error_code == ErrorCode.none
        exchange = ScramClient(SCRAM_SHA_256, "carol", "carol-secret", "nonce")
        for message in (exchange.first(),):
            client.writer.write(struct.pack(">i", len(message)) + message)
        final = exchange.next(await client.answer())
        assert final is not None
        client.writer.write(struct.pack(">i", len(final)) + final)
        assert exchange.next(await client.answer()) is None
        assert await client.is_served()

        plain = await scene.client()
        await plain.ask(HANDSHAKE, 0, mechanism=PLAIN)
        plain.writer.write(b"\0\0\0\x13\0alice\0alice-secret"[:4] + b"\0alice\0alice-secret")
        assert await plain.answer() == b""
        assert await plain.is_served()

    play(act)


@pytest.mark.parametrize("message", [b"", b"x", b"\0alice\0wrong-secret"])
def test_a_wrong_message_without_a_header_closes_the_connection_without_an_answer(message: bytes) -> None:
    async def act(scene: Scene) -> None:
        client = await scene.client()
        await client.ask(HANDSHAKE, 0, mechanism=PLAIN)
        client.writer.write(struct.pack(">i", len(message)) + message)
        assert await client.closed() == b""

    play(act)


def test_an_unknown_mechanism_is_answered_by_the_known_ones() -> None:
    async def act(scene: Scene) -> None:
        client = await scene.client()
        answer = await client.ask(HANDSHAKE, 1, mechanism=SCRAM_SHA_512)
        assert answer.error_code == ErrorCode.unsupported_sasl_mechanism
        assert answer.mechanisms == (PLAIN, SCRAM_SHA_256)
        assert await client.closed() == b""

    play(act)


@pytest.mark.parametrize("mechanism", [PLAIN, SCRAM_SHA_256])
def test_an_unknown_user_gets_the_words_and_the_delay_of_a_wrong_password(mechanism: str) -> None:
    async def act(scene: Scene) -> None:
        known = "alice" if mechanism == PLAIN else "carol"
        told = []
        for user in (known, "nobody"):
            client = await scene.client()
            began = asyncio.get_running_loop().time()
            answer = await client.log_in(user, "wrong-secret", mechanism)
            assert asyncio.get_running_loop().time() - began >= 0.09
            assert await client.closed() == b""
            told.append((answer.error_code, answer.error_message))
        assert told[0] == told[1]
        assert told[0][0] == ErrorCode.sasl_authentication_failed
        assert scene.logins.counters["CLIENTS"].failed == 2

    play(act)


@pytest.mark.parametrize(
    "requests",
    [
        [(METADATA, 0)],
        [(0, 3)],
        [(AUTHENTICATE, 2)],
        [(VERSIONS, 0), (VERSIONS, 0)],
        [(VERSIONS, 0), (METADATA, 0)],
        [(HANDSHAKE, 1), (VERSIONS, 0)],
        [(HANDSHAKE, 1), (METADATA, 0)],
        [(HANDSHAKE, 1), (HANDSHAKE, 1)],
        [(HANDSHAKE, 9)],
        [(HANDSHAKE, -1)],
        [(12345, 0)],
        [(-1, 0)],
    ],
    ids=str,
)
def test_requests_out_of_order_close_the_connection_and_reach_no_handler(requests: list[tuple[int, int]]) -> None:
    async def act(scene: Scene) -> None:
        client = await scene.client()
        for key, version in requests:
            known = (key, version) in {(HANDSHAKE, 1), (VERSIONS, 0), (AUTHENTICATE, 2)}
            message = {HANDSHAKE: {"mechanism": PLAIN}, AUTHENTICATE: {"auth_bytes": b"\0alice\0alice-secret"}}.get(key)
            body = write_request(key, version, message or {}) if known else b"\0\x05PLAIN"
            header = (
                struct.pack(">hhih", key, version, 7, 1)
                + b"c"
                + (b"\0" if (key, version) == (AUTHENTICATE, 2) else b"")
            )
            client.writer.write(struct.pack(">i", len(header) + len(body)) + header + body)
        client.send(METADATA, 0)
        await client.closed()
        assert {key for key, _ in scene.served} <= {VERSIONS}

    play(act)


def test_requests_that_were_sent_before_the_login_are_served_after_it_in_their_order() -> None:
    async def act(scene: Scene) -> None:
        client = await scene.client()
        client.send(VERSIONS, 0)
        client.send(HANDSHAKE, 1, mechanism=PLAIN)
        client.send(AUTHENTICATE, 1, auth_bytes=b"\0alice\0alice-secret")
        client.send(METADATA, 0)
        client.send(0, 3)
        answers = [await client.answer() for _ in range(5)]
        assert [answer[-8:] for answer in (answers[0], *answers[3:])] == [b"erved 18", b"served 3", b"served 0"]
        assert scene.served[1:] == [(METADATA, "User:alice"), (0, "User:alice")]

    play(act)


def test_requests_behind_a_refused_login_are_never_served() -> None:
    async def act(scene: Scene) -> None:
        client = await scene.client()
        client.send(HANDSHAKE, 1, mechanism=PLAIN)
        client.send(AUTHENTICATE, 1, auth_bytes=b"\0alice\0wrong-secret")
        for _ in range(1000):
            client.send(METADATA, 0)
        await client.closed()
        assert scene.served == []

    play(act)


def test_a_frame_that_is_too_large_closes_the_connection_before_the_login_and_not_after_it() -> None:
    async def act(scene: Scene) -> None:
        client = await scene.client()
        client.writer.write(struct.pack(">i", 2001))
        assert await client.closed() == b""
        client = await scene.client()
        await client.ask(HANDSHAKE, 1, mechanism=PLAIN)
        client.send(AUTHENTICATE, 1, auth_bytes=b"\0" * 1900)
        assert b"Invalid SASL/PLAIN" in await client.closed()
        client = await scene.client()
        await client.log_in()
        client.writer.write(struct.pack(">ihhih", 5010, METADATA, 0, 7, 0) + b"." * 5000)
        assert (await client.answer()).endswith(b"served 3")

    play(act, "sasl.server.max.receive.size=2000\n")


@pytest.mark.parametrize("seed", range(30))
def test_junk_never_hangs_and_never_reaches_a_handler(seed: int) -> None:
    async def act(scene: Scene) -> None:
        pick = random.Random(seed)
        client = await scene.client()
        if pick.random() < 0.5:
            await client.ask(HANDSHAKE, pick.randrange(2), mechanism=pick.choice((PLAIN, SCRAM_SHA_256)))
        for _ in range(5):
            junk = pick.randbytes(pick.randrange(200))
            key = pick.choice((HANDSHAKE, AUTHENTICATE, VERSIONS, pick.randrange(100)))
            header = struct.pack(">hhih", key, pick.randrange(4), 7, pick.choice((-1, 0, len(junk))))
            body = pick.choice((junk, header + junk))
            client.writer.write(struct.pack(">i", len(body)) + body)
        client.writer.write_eof()
        await client.closed()
        assert {key for key, _ in scene.served} <= {VERSIONS}
        await until(lambda: scene.server.connection_count == 0)

    play(act, "connection.failed.authentication.delay.ms=1\n")


def test_a_connection_that_doesnt_log_in_is_closed() -> None:
    async def act(scene: Scene) -> None:
        silent, half, logged = [await scene.client() for _ in range(3)]
        await half.ask(HANDSHAKE, 1, mechanism=PLAIN)
        await logged.log_in()
        assert await silent.closed() == b""
        assert await half.closed() == b""
        assert await logged.is_served()

    play(act, "ottla.login.timeout.ms=300\n")


REAUTHENTICATED = "listener.name.clients.plain.connections.max.reauth.ms=60000\n"


def test_a_session_ends_unless_the_user_logs_in_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "BEGUN_AGAIN_S", 0.0)

    async def act(scene: Scene) -> None:
        client = await scene.client()
        assert (await client.log_in()).session_lifetime.total_seconds() == 60
        scene.clock.now_ms += 60_000
        assert await client.is_served()
        assert (await client.log_in()).session_lifetime.total_seconds() == 60
        scene.clock.now_ms += 60_000
        assert await client.is_served()
        scene.clock.now_ms += 1
        client.send(METADATA, 0)
        assert await client.closed() == b""
        counters = scene.logins.counters["CLIENTS"]
        assert (counters.succeeded, counters.succeeded_again, counters.expired) == (1, 1, 1)

    play(act, REAUTHENTICATED)


def test_another_login_is_judged_by_the_present_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the fix, a removed user of PLAIN logged in anew for as long as its connection stayed open."""
    monkeypatch.setattr(gate, "BEGUN_AGAIN_S", 0.0)
    name = "listener.name.clients.plain.sasl.jaas.config"

    async def act(scene: Scene) -> None:
        client = await scene.client()
        await client.log_in()
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        config = BrokerConfig.from_sources(PROPERTIES + REAUTHENTICATED)
        scene.logins.configured(*config.with_dynamic({name: f'{module} required user_bob="bob-secret";'}, {}))
        assert (await client.log_in()).error_code == ErrorCode.sasl_authentication_failed

    play(act, REAUTHENTICATED)


def test_a_listener_that_was_opened_with_logins_keeps_them_until_the_next_start() -> None:
    """Before the fix, a protocol for the next start took the login away from the listener that was open."""

    async def act(scene: Scene) -> None:
        config = BrokerConfig.from_sources(PROPERTIES)
        settings = {"listener.security.protocol.map": "CLIENTS:PLAINTEXT,OPEN:PLAINTEXT"}
        changed, names = config.with_dynamic(settings, {})
        assert changed.listeners.protocol_of("CLIENTS") == "PLAINTEXT"
        scene.logins.configured(changed.serving(config.listeners), names)
        client = await scene.client()
        client.send(METADATA, 0)
        assert await client.closed() == b""
        assert (await (await scene.client()).log_in()).error_code == ErrorCode.none

    play(act)


def test_another_login_too_early_is_refused_by_the_usual_handler() -> None:
    async def act(scene: Scene) -> None:
        client = await scene.client()
        await client.log_in()
        client.send(HANDSHAKE, 1, mechanism=PLAIN)
        assert (await client.answer()).endswith(b"served 17")
        assert await client.is_served()

    play(act, REAUTHENTICATED)


@pytest.mark.parametrize(
    ("user", "password", "mechanism"),
    [("bob", "bob-secret", PLAIN), ("alice", "wrong-secret", PLAIN), ("carol", "carol-secret", SCRAM_SHA_256)],
)
def test_another_login_is_of_the_same_user_by_the_same_mechanism(
    user: str, password: str, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "BEGUN_AGAIN_S", 0.0)

    async def act(scene: Scene) -> None:
        client = await scene.client()
        await client.log_in()
        assert (await client.ask(HANDSHAKE, 1, mechanism=mechanism)).error_code == ErrorCode.none
        exchange: Any = PlainClient(user, password)
        client.send(AUTHENTICATE, 2, auth_bytes=exchange.first())
        told = await client.closed()
        assert bool(told) == (mechanism == PLAIN)
        assert (b"Cannot change principals" in told) == (user == "bob")
        assert scene.logins.counters["CLIENTS"].failed_again == 1

    play(act, REAUTHENTICATED)


def test_a_user_who_was_deleted_or_changed_logs_in_no_more() -> None:
    async def act(scene: Scene) -> None:
        assert (await (await scene.client()).log_in("carol", "carol-secret", SCRAM_SHA_256)).error_code == 0
        scene.image.scram = {("carol", SCRAM_SHA_256): scram_keys(SCRAM_SHA_256, "another")}
        assert (await (await scene.client()).log_in("carol", "carol-secret", SCRAM_SHA_256)).error_code == 58
        assert (await (await scene.client()).log_in("carol", "another", SCRAM_SHA_256)).error_code == 0
        scene.image.scram = {}
        assert (await (await scene.client()).log_in("carol", "another", SCRAM_SHA_256)).error_code == 58

    play(act)


def test_a_user_who_is_deleted_during_the_login_isnt_let_in() -> None:
    """Before the fix, whoever had sent the first message logged in after the deletion was in force everywhere."""

    async def act(scene: Scene) -> None:
        client = await scene.client()
        exchange = ScramClient(SCRAM_SHA_256, "carol", "carol-secret", "nonce")
        await client.ask(HANDSHAKE, 1, mechanism=SCRAM_SHA_256)
        answer = await client.ask(AUTHENTICATE, 2, auth_bytes=exchange.first())
        scene.image.scram = {}
        final = exchange.next(bytes(answer.auth_bytes))
        assert (await client.ask(AUTHENTICATE, 2, auth_bytes=final)).error_code == 58

    play(act)


def test_changed_settings_count_at_the_next_login_and_by_wrong_ones_nobody_logs_in() -> None:
    name = "listener.name.clients.plain.sasl.jaas.config"

    async def act(scene: Scene) -> None:
        config = BrokerConfig.from_sources(PROPERTIES)
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        changed, names = config.with_dynamic({name: f'{module} required user_dora="dora-secret";'}, {})
        scene.logins.configured(changed, names)
        assert (await (await scene.client()).log_in("dora", "dora-secret")).error_code == ErrorCode.none
        assert (await (await scene.client()).log_in()).error_code == ErrorCode.sasl_authentication_failed
        broken, names = changed.with_dynamic({name: f'{module} required user_dora="wrong-secret"'}, {})
        scene.logins.configured(broken, names)
        client = await scene.client()
        handshake = await client.ask(HANDSHAKE, 1, mechanism=PLAIN)
        assert handshake.error_code == ErrorCode.unsupported_sasl_mechanism
        assert list(handshake.mechanisms) == [SCRAM_SHA_256]
        answer = await (await scene.client()).log_in("carol", "carol-secret", SCRAM_SHA_256)
        assert answer.error_code == ErrorCode.none

    play(act)


def begun(login: ClientLogin) -> Begin:
    begin = begin_login(login)

    async def begin_now() -> ClientExchange:
        return begin()

    return begin_now


@pytest.mark.parametrize(
    "login",
    [ClientLogin(PLAIN, "alice", "alice-secret"), ClientLogin(SCRAM_SHA_256, "carol", "carol-secret")],
    ids=lambda login: login.mechanism,
)
def test_a_broker_logs_in_at_another_broker_and_again_before_its_session_ends(login: ClientLogin) -> None:
    async def act(scene: Scene) -> None:
        opened = scene.server.listeners["CLIENTS"]
        connect = logged_in(connect_tcp, begun(login))
        stream = await connect(opened.host, opened.port)
        counters = scene.logins.counters["CLIENTS"]
        for wait_s in (0.0, 1.2):
            await asyncio.sleep(wait_s)
            await stream.write(request_frame(METADATA, 0, 7, "c", b""))
            answer = bytearray(4 + 4 + len(b"served 3"))
            await stream.read_exactly(memoryview(answer))
            assert answer.endswith(b"served 3")
        stream.close()
        assert (counters.succeeded, counters.succeeded_again) == (1, 1)

    play(act, "connections.max.reauth.ms=1300\n")


def test_a_login_that_is_renewed_has_a_deadline_too(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = begun(ClientLogin(PLAIN, "alice", "alice-secret"))
    hangs = False

    async def begin_or_hang() -> ClientExchange | None:
        return await (asyncio.get_running_loop().create_future() if hangs else begin())

    async def act(scene: Scene) -> None:
        nonlocal hangs
        opened = scene.server.listeners["CLIENTS"]
        stream = await logged_in(connect_tcp, begin_or_hang)(opened.host, opened.port)
        hangs = True
        monkeypatch.setattr(logging_in, "LOGIN_SECONDS_MAX", 0.05)
        await asyncio.sleep(1.2)
        writing = asyncio.ensure_future(stream.write(request_frame(METADATA, 0, 7, "c", b"")))
        await asyncio.wait([writing], timeout=3)
        assert writing.done(), "the login doesn't end"
        assert isinstance(writing.exception(), TimeoutError)
        stream.close()

    play(act, "connections.max.reauth.ms=1300\n")


@pytest.mark.parametrize(
    ("login", "told"),
    [
        (ClientLogin(PLAIN, "alice", "wrong-secret"), "Invalid username or password"),
        (ClientLogin(SCRAM_SHA_512, "carol", "carol-secret"), "offers PLAIN, SCRAM-SHA-256"),
    ],
)
def test_a_broker_whose_login_is_refused_says_why(login: ClientLogin, told: str) -> None:
    async def act(scene: Scene) -> None:
        opened = scene.server.listeners["CLIENTS"]
        connect = logged_in(connect_tcp, begun(login))
        with pytest.raises(LoginFailed, match=told):
            await connect(opened.host, opened.port)

    play(act)


OAUTH = """
listener.name.clients.sasl.enabled.mechanisms=OAUTHBEARER
listener.name.clients.oauthbearer.sasl.jaas.config=\
    org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;
"""


def own_oauth_login(user: str, lifetime_s: str = "3600") -> ClientLogin:
    options = (("unsecuredLoginStringClaim_sub", user), ("unsecuredLoginLifetimeSeconds", lifetime_s))
    return ClientLogin(OAUTHBEARER, token_options=options)


def test_a_broker_logs_in_by_a_token_from_an_identity_provider() -> None:
    answer = json.dumps({"access_token": token(4_000_000_000)}).encode()
    with served((200, answer)) as (url, got):
        prefix = "listener.name.clients.oauthbearer.sasl.oauthbearer"
        own = (
            "sasl.mechanism.inter.broker.protocol=OAUTHBEARER\n"
            f"{prefix}.token.endpoint.url={url}\n{prefix}.client.credentials.client.id=broker\n"
            f"{prefix}.client.credentials.client.secret=hidden-secret\n"
        )
        text = (PROPERTIES + OAUTH + own).replace("broker.listener.name=OPEN", "broker.listener.name=CLIENTS")
        config = BrokerConfig.from_sources(text)

        async def act(scene: Scene) -> None:
            connect = connect_to_brokers(connect_tcp, TlsListeners(serves=True), lambda: config)
            opened = scene.server.listeners["CLIENTS"]
            for _ in range(2):
                (await connect(opened.host, opened.port)).close()
            assert scene.logins.counters["CLIENTS"].succeeded == 2

        play(act, OAUTH)
    assert len(got) == 1


def test_a_token_logs_in_until_it_expires() -> None:
    async def act(scene: Scene) -> None:
        client = await scene.client()
        await client.ask(HANDSHAKE, 1, mechanism=OAUTHBEARER)
        first = begin_login(own_oauth_login("alice"))().first()
        scene.clock.now_ms = int(time.time() * 1000)
        answer = await client.ask(AUTHENTICATE, 2, auth_bytes=first)
        assert answer.error_code == ErrorCode.none
        assert 3590 < answer.session_lifetime.total_seconds() <= 3600
        assert await client.is_served()
        scene.clock.now_ms += 3_700_000
        client.send(METADATA, 0)
        assert await client.closed() == b""
        assert scene.served == [(METADATA, "User:alice")]

    play(act, OAUTH)


def test_a_wrong_token_fails_after_its_acknowledgement() -> None:
    async def act(scene: Scene) -> None:
        scene.clock.now_ms = int(time.time() * 1000)
        client = await scene.client()
        await client.ask(HANDSHAKE, 1, mechanism=OAUTHBEARER)
        first = begin_login(own_oauth_login("alice", "-5"))().first()
        answer = await client.ask(AUTHENTICATE, 2, auth_bytes=first)
        assert (answer.error_code, answer.auth_bytes) == (ErrorCode.none, b'{"status":"invalid_token"}')
        answer = await client.ask(AUTHENTICATE, 2, auth_bytes=b"\x01")
        assert answer.error_code == ErrorCode.sasl_authentication_failed
        assert await client.closed() == b""

    play(act, OAUTH)


class Slow:
    """An exchange that waits for something once."""

    def __init__(self, event: asyncio.Event) -> None:
        self._event = event

    async def _until(self) -> None:
        await self._event.wait()

    def respond(self, message: bytes) -> LoggedIn:
        if not self._event.is_set():
            raise NotYet(self._until)
        return LoggedIn(message.decode())


def test_a_login_that_waits_is_answered_later_and_what_follows_waits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    event = asyncio.Event()
    monkeypatch.setattr(Mechanisms, "_mechanism", lambda *_: Mechanism(lambda: Slow(event)))

    async def act(scene: Scene) -> None:
        client, given_up = await scene.client(), await scene.client()
        for each in (client, given_up):
            await each.ask(HANDSHAKE, 1, mechanism=PLAIN)
            each.send(AUTHENTICATE, 2, auth_bytes=b"late")
        client.send(METADATA, 0)
        given_up.writer.close()
        await asyncio.sleep(0.1)
        assert scene.served == []
        event.set()
        await client.answer()
        assert (await client.answer()).endswith(b"served 3")
        assert scene.served == [(METADATA, "User:late")]

    play(act)


def test_a_login_that_waits_too_long_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mechanisms, "_mechanism", lambda *_: Mechanism(lambda: Slow(asyncio.Event())))

    async def act(scene: Scene) -> None:
        client = await scene.client()
        await client.ask(HANDSHAKE, 1, mechanism=PLAIN)
        client.send(AUTHENTICATE, 2, auth_bytes=b"late")
        assert await client.closed() == b""

    play(act, "ottla.login.timeout.ms=200\n")
