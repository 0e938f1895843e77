"""SASL_SSL: the login follows the handshake, over the same connection, for other brokers and for clients."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.login.logins import Logins
from ottla.broker.login.mechanisms import Mechanisms
from ottla.broker.login.own import connect_to_brokers
from ottla.net.blocking import Connection as BlockingConnection
from ottla.net.connection import Connection
from ottla.net.names import Address
from ottla.net.server import Limits, Server
from ottla.net.streams import connect_tcp
from ottla.net.tls_streams import connect_tls
from ottla.protocol.frames import request_frame, response_frame
from ottla.protocol.messages import write_response
from ottla.protocol.sasl import LoginRefused
from ottla.security.client_settings import client_security
from ottla.security.jaas import PLAIN_MODULE
from ottla.security.preparation import prepared
from ottla.security.tls_listeners import TlsListeners
from ottla.settings.config import BrokerConfig
from tests.peers.certificates import Authority

METADATA, VERSIONS = 3, 18


class Scene:
    """A server with one SASL_SSL listener, which demands certificates whose names no mapping rule knows."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        key = self.authority.issue("broker", common_name="broker")
        self.stores = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(key),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.trust),
        }
        text = "".join(f"{name}={value}\n" for name, value in self.stores.items())
        self.config = BrokerConfig.from_sources(
            f"{text}node.id=0\nlisteners=BROKERS://127.0.0.1:9093\nlistener.security.protocol.map=BROKERS:SASL_SSL\n"
            "inter.broker.listener.name=BROKERS\nsasl.enabled.mechanisms=PLAIN\n"
            "sasl.mechanism.inter.broker.protocol=PLAIN\nlistener.name.brokers.ssl.client.auth=required\n"
            "ssl.principal.mapping.rules=RULE:^CN=nobody$/x/\n"
            f"listener.name.brokers.plain.sasl.jaas.config={PLAIN_MODULE} required"
            ' username="broker" password="geheim" user_broker="geheim" user_alice="geheim";\n'
        )
        self.tls = TlsListeners(serves=True)
        self.served: list[tuple[int, str]] = []
        self.port = 0

    def dispatch(self, connection: Connection, frame: bytearray, start: int, end: int) -> Any:
        key, version, correlation_id = struct.unpack_from(">hhi", frame, start)
        self.served.append((key, connection.principal))
        keys = [{"api_key": each, "min_version": 0, "max_version": 1} for each in (METADATA, 17, 36)]
        body = write_response(key, version, {"api_keys": keys}) if key == VERSIONS else b"served"
        return [response_frame(key, version, correlation_id, body)]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        await self.tls.load(self.config)
        logins = Logins(self.config, Mechanisms(SimpleNamespace, lambda: 0, Random(1)), self.dispatch, lambda: 0)
        server = Server(self.dispatch, Limits(), frozenset(), begin_login=logins.begin)
        listener = await server.listen("BROKERS", "127.0.0.1", 0, self.tls.of("BROKERS"))
        self.port = listener.port
        server.accept()
        try:
            async with asyncio.timeout(30):
                yield
        finally:
            await server.close()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_brokers_log_in_at_one_another_over_encrypted_connections(scene: Scene) -> None:
    async def main() -> None:
        async with scene.open():
            connect = connect_to_brokers(connect_tcp, scene.tls, lambda: scene.config)
            stream = await connect("127.0.0.1", scene.port)
            await stream.write(request_frame(METADATA, 0, 5, "test", b"\0\0\0\0"))
            answer = bytearray(14)
            await stream.read_exactly(memoryview(answer))
            assert answer[8:] == b"served"
            stream.close()
        assert scene.served == [(METADATA, "User:broker")]

    asyncio.run(main())


def test_an_encrypted_connection_without_a_login_is_not_served(scene: Scene) -> None:
    async def main() -> None:
        async with scene.open():
            stream = await connect_tls(scene.tls.client_context)("127.0.0.1", scene.port)
            await stream.write(request_frame(METADATA, 0, 5, "test", b"\0\0\0\0"))
            with pytest.raises(ConnectionResetError):
                await stream.read_exactly(memoryview(bytearray(1)))
            stream.close()
        assert scene.served == []

    asyncio.run(main())


def test_a_client_is_the_user_of_its_login_and_not_of_its_certificate(scene: Scene) -> None:
    def connect(password: str) -> None:
        login = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{PLAIN_MODULE} required username="alice" password="{password}";',
        }
        security = prepared(client_security(scene.stores | login))
        connection = BlockingConnection(Address("127.0.0.1", scene.port), "test", timeout_s=10, security=security)
        connection.send(METADATA, 0, {"topics": []})
        connection.close()

    async def main() -> None:
        async with scene.open():
            await asyncio.to_thread(connect, "geheim")
            with pytest.raises(LoginRefused):
                await asyncio.to_thread(connect, "wrong")
        assert scene.served[:2] == [(VERSIONS, "User:ANONYMOUS"), (METADATA, "User:alice")]

    asyncio.run(main())
