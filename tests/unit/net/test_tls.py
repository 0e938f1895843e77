"""Connections over TLS: bytes in both directions, handshakes that fail or never end, turns, and other certificates."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import ssl
import struct
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.log.disk import RealFile
from ottla.net import tls, tls_streams
from ottla.net.blocking import Connection as BlockingConnection
from ottla.net.blocking import ConnectionLost
from ottla.net.handshakes import HANDSHAKE_SECONDS
from ottla.net.names import Address
from ottla.net.peer import Peer
from ottla.net.server import Limits, Server
from ottla.net.streams import BlockingStream, connect_tcp
from ottla.net.tls_streams import connect_tls
from ottla.net.turns import Turns
from ottla.protocol.errors import ProtocolError
from ottla.security.contexts import client_context, server_context
from ottla.security.stores import read_stores
from ottla.security.tls_settings import client_tls_settings
from tests.peers.certificates import Authority
from tests.unit.waiting import until

ORDINARY = 3
FILE_BYTES = 3 * 1024 * 1024


def frame(payload: bytes) -> bytes:
    body = struct.pack(">hhi", ORDINARY, 0, 0) + payload.ljust(4, b".")
    return struct.pack(">i", len(body)) + body


class Slice:
    def __init__(self, file: RealFile, position: int, size: int) -> None:
        self.file, self.position, self.size = file, position, size


class Terms:
    """TLS of a listener; principals are the lengths of certificates."""

    def __init__(self, key: Path, trust: Path, client_auth: Any) -> None:
        self.client_auth = client_auth
        self.trust = trust
        self.use(key)
        self.refused = ""

    def use(self, key: Path) -> None:
        settings = pem_settings(key, self.trust)
        self._context = server_context(settings, read_stores(settings), self.client_auth)

    def context(self) -> ssl.SSLContext:
        return self._context

    def principal_of(self, certificate: bytes | None) -> str:
        if self.refused:
            raise ValueError(self.refused)
        return "User:ANONYMOUS" if certificate is None else "User:known"


def pem_settings(key: Path | None, trust: Path, **others: str) -> Any:
    keys = {} if key is None else {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(key)}
    given = {name.replace("_", "."): value for name, value in others.items()}
    return client_tls_settings({**keys, "ssl.truststore.type": "PEM", "ssl.truststore.location": str(trust), **given})


class House:
    """A server with one encrypted listener, which answers each frame with its payload."""

    def __init__(self, server: Server, port: int, terms: Terms, authority: Authority) -> None:
        self.server, self.port, self.terms, self.authority = server, port, terms, authority

    def trusting(self, key: Path | None = None, **others: str) -> ssl.SSLContext:
        settings = pem_settings(key, self.authority.trust, **others)
        return client_context(settings, read_stores(settings))

    async def connect(self, context: ssl.SSLContext | None = None, host: str = "localhost"):
        return await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=context or self.trusting(), server_hostname=host
        )

    @property
    def connections(self) -> list[Any]:
        return list(self.server.listeners["SSL"].connections)


def serve(connection: Any, buffer: Any, start: int, end: int) -> list[Any]:
    payload = bytes(buffer[start + 8 : end])
    if payload.startswith(b"file"):
        with tempfile.TemporaryFile() as temporary:
            file = RealFile(os.dup(temporary.fileno()))
        file.pwrite(bytes(range(256)) * (FILE_BYTES // 256), 0)
        return [b"head", Slice(file, 0, FILE_BYTES)]
    if payload.startswith(b"large"):
        return [bytes(int(payload[5:]))]
    if payload.startswith(b"who."):
        return [connection.principal.encode()]
    return [payload]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def run(authority: Authority) -> Callable[..., None]:
    def runs(scenario: Callable[[House], Awaitable[None]], client_auth: str = "none", key: Path | None = None) -> None:
        async def main() -> None:
            terms = Terms(key or authority.issue("server"), authority.trust, client_auth)
            server = Server(serve, Limits(), frozenset())
            listener = await server.listen("SSL", "127.0.0.1", 0, terms)
            server.accept()
            try:
                await asyncio.wait_for(scenario(House(server, listener.port, terms, authority)), 60)
                assert not server.handshakes.under_way
            finally:
                await server.close()
            assert server.connection_count == 0

        asyncio.run(main())

    return runs


def test_frames_of_all_sizes_in_both_directions(run):
    async def scenario(house: House) -> None:
        reader, writer = await house.connect()
        for size in (1, 16_000, 16_384, 70_000, 3_000_000):
            writer.write(frame(b"x" * size) + frame(b"then"))
            answer = await reader.readexactly(max(size, 4) + 4)
            assert answer[-4:] == b"then"
        for number in range(300):
            writer.write(frame(b"%04d" % number))
        assert await reader.readexactly(1200) == b"".join(b"%04d" % number for number in range(300))

    run(scenario)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_file_reaches_a_slow_reader_whole(run, version):
    async def scenario(house: House) -> None:
        context = house.trusting()
        context.minimum_version = context.maximum_version = version
        reader, writer = await house.connect(context)
        writer.write(frame(b"file") + frame(b"tail") + frame(b"large5000000"))
        await asyncio.sleep(0.1)
        data = await reader.readexactly(4 + FILE_BYTES + 4)
        assert data[:4] + data[-4:] == b"headtail"
        assert data[4:-4] == bytes(range(256)) * (FILE_BYTES // 256)
        assert await reader.readexactly(5_000_000) == bytes(5_000_000)

    run(scenario)


def test_an_answer_leaves_others_their_turn(run):
    """The event loop goes on turning while a client takes a large answer as fast as it comes."""

    async def scenario(house: House) -> None:
        reader, writer = await house.connect()
        turns = 0

        def turn() -> None:
            nonlocal turns
            turns += 1
            asyncio.get_running_loop().call_soon(turn)

        writer.write(frame(b"large33554432"))
        turn()
        while len(await reader.read(1 << 20)) and turns < 32:
            pass
        assert turns >= 32

    run(scenario)


def test_the_principal_is_known_at_the_first_request(run):
    async def scenario(house: House) -> None:
        for key, principal in ((None, b"User:ANONYMOUS"), (house.authority.issue("client"), b"User:known")):
            reader, writer = await house.connect(house.trusting(key))
            writer.write(frame(b"who."))
            assert await reader.readexactly(len(principal)) == principal
            writer.close()

    run(scenario, "requested")


def test_goodbyes(run):
    async def scenario(house: House) -> None:
        _reader, writer = await house.connect()
        writer.close()  # with a close-notify
        await until(lambda: not house.connections)
        _reader, writer = await house.connect()
        os.close(os.dup(writer.get_extra_info("socket").fileno()))
        writer.transport.abort()  # without one
        await until(lambda: not house.connections)
        reader, writer = await house.connect()
        writer.write(frame(b"left"))
        assert await reader.readexactly(4) == b"left"
        house.connections[0].close()
        assert await reader.read() == b""  # asyncio would raise an error without a close-notify

    run(scenario)


def log_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "ottla.net.server"]


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (frame(b"plaintext to the wrong port"), "doesn't speak TLS"),
        (b"GET / HTTP/1.1\r\n\r\n", r"doesn't speak TLS \(HTTP_REQUEST\)"),
        (bytes(range(256)) * 4, "doesn't speak TLS"),
        (b"\x16\x03\x01\x02\x00\x01", "the peer hung up"),
        (b"\x16\x03\x01\xff\xff" + bytes(100), "PACKET_LENGTH_TOO_LONG|doesn't speak TLS"),
    ],
    ids=["frame", "http", "junk", "half", "long"],
)
def test_junk_ends_with_one_line(run, caplog, sent, why):
    async def scenario(house: House) -> None:
        with caplog.at_level(logging.INFO):
            _reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
            writer.write(sent)
            await until(lambda: house.connections != [])
            await asyncio.sleep(0.05)
            writer.close()
            await until(lambda: not house.connections)
        (line,) = log_lines(caplog)
        assert line.startswith("listener SSL: the TLS handshake with 127.0.0.1 failed: ")
        assert re.search(why, line)

    run(scenario)


def test_a_probe_without_a_byte_leaves_no_line(run, caplog):
    async def scenario(house: House) -> None:
        with caplog.at_level(logging.INFO):
            _reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
            await until(lambda: house.connections != [])
            writer.close()
            await until(lambda: not house.connections)
        assert not log_lines(caplog)

    run(scenario)


def test_a_silent_peer_is_given_up(run, caplog):
    async def scenario(house: House) -> None:
        with caplog.at_level(logging.INFO):
            reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
            writer.write(b"\x16\x03\x01")
            await until(lambda: house.connections != [])
            now = asyncio.get_running_loop().time()
            turns = Turns()
            house.server.handshakes.give_up_late_ones(now + HANDSHAKE_SECONDS - 1, turns)
            await until(lambda: not turns.waiting)
            assert house.connections
            house.server.handshakes.give_up_late_ones(now + HANDSHAKE_SECONDS + 1, turns)
            await until(lambda: not turns.waiting)
            assert not house.connections
            assert await reader.read() == b""
        (line,) = log_lines(caplog)
        assert line == "listener SSL: the TLS handshake with 127.0.0.1 failed: it didn't end within 10 s"

    run(scenario)


def test_no_signature_is_made_for_a_peer_that_hung_up_before_its_turn(run, caplog):
    async def scenario(house: House) -> None:
        asked = []
        house.terms.context = lambda: asked.append(1)  # type: ignore[method-assign, assignment, func-returns-value]
        outgoing = ssl.MemoryBIO()
        with pytest.raises(ssl.SSLWantReadError):
            house.trusting().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
        with caplog.at_level(logging.INFO):
            with socket.create_connection(("127.0.0.1", house.port)) as gone:
                gone.sendall(outgoing.read())
            await until(lambda: log_lines(caplog) != [])
        assert not house.connections
        assert not asked
        (line,) = log_lines(caplog)
        assert line == "listener SSL: the TLS handshake with 127.0.0.1 failed: the peer hung up before its turn"

    run(scenario)


class Held(Turns):
    """Turns whose steps wait until the test lets them go."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Callable[[], None]] = []

    def wait(self, step: Callable[[], None]) -> None:
        self.held.append(step)


def test_what_the_channel_holds_itself_is_read_in_a_turn(run):
    async def scenario(house: House) -> None:
        turns = house.server.resumes = Held()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = house.trusting().wrap_bio(incoming, outgoing, server_hostname="localhost")
        reader, writer = await asyncio.open_connection("127.0.0.1", house.port)

        async def talk(step: Callable[[], Any]) -> Any:
            while True:
                try:
                    return step()
                except ssl.SSLWantReadError:
                    writer.write(outgoing.read())
                    incoming.write(await reader.read(65536))

        await talk(client.do_handshake)
        writer.write(outgoing.read())
        await until(lambda: not house.server.handshakes.under_way)
        assert not turns.held
        client.write(frame(b"last"))
        with pytest.raises(ssl.SSLWantReadError):
            client.unwrap()
        assert await talk(lambda: client.read(100)) == b"last"
        assert house.connections, "the peer's goodbye is in the channel, and waits"
        for step in turns.held:
            step()
        assert not house.connections
        writer.close()

    run(scenario)


def test_an_endless_hello_is_given_up(run, caplog, monkeypatch):
    monkeypatch.setattr(tls, "_HANDSHAKE_BYTES_MAX", 20_000)

    async def scenario(house: House) -> None:
        with caplog.at_level(logging.INFO):
            _reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
            # records of a ClientHello that announces 64 KiB
            writer.write(b"\x16\x03\x01\x3f\xff\x01\x00\xff\xff" + bytes(0x3FFF - 4))
            writer.write(b"\x16\x03\x01\x3f\xff" + bytes(0x3FFF))
            await until(lambda: log_lines(caplog) != [])
        assert not house.connections

    run(scenario)


def test_certificates_that_arent_trusted(run, caplog, tmp_path):
    async def scenario(house: House) -> None:
        stranger = Authority(tmp_path)
        with caplog.at_level(logging.INFO):
            for client in (None, stranger.issue("client"), house.authority.issue("expired", expired=True)):
                reader, writer = await house.connect(house.trusting(client))
                writer.write(frame(b"who."))
                with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                    await reader.readexactly(14)
                await until(lambda: not house.connections)
        lines = log_lines(caplog)
        assert len(lines) == 3
        assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in lines[0]
        assert "the client's certificate isn't trusted: " in lines[1]
        assert "the client's certificate isn't trusted: certificate has expired" in lines[2]

    run(scenario, "required")


def test_a_requested_certificate_that_isnt_trusted_is_refused(run, tmp_path):
    async def scenario(house: House) -> None:
        reader, writer = await house.connect(house.trusting(Authority(tmp_path).issue("client")))
        writer.write(frame(b"who."))
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(14)

    run(scenario, "requested")


def test_a_client_who_is_nobody_is_refused(run, caplog):
    async def scenario(house: House) -> None:
        house.terms.refused = "no rule applies to CN=x"
        with caplog.at_level(logging.INFO):
            reader, writer = await house.connect()
            writer.write(frame(b"who."))
            assert await reader.read() == b""
        assert log_lines(caplog) == ["listener SSL refuses a client from 127.0.0.1: no rule applies to CN=x"]

    run(scenario)


def test_other_certificates_are_for_new_connections_and_cut_none(run):
    async def scenario(house: House) -> None:
        old_reader, old_writer = await house.connect()
        before = old_writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        house.terms.use(house.authority.issue("server"))
        _, new_writer = await house.connect()
        assert new_writer.get_extra_info("ssl_object").getpeercert(binary_form=True) != before
        old_writer.write(frame(b"on.."))
        assert await old_reader.readexactly(4) == b"on.."

    run(scenario)


def test_renegotiation_is_refused(run):
    async def scenario(house: House) -> None:
        assert house.terms.context().options & ssl.OP_NO_RENEGOTIATION

    run(scenario)


def test_many_handshakes_at_once_all_succeed(run):
    async def scenario(house: House) -> None:
        context = house.trusting()
        pairs = await asyncio.gather(*(house.connect(context) for _ in range(100)))
        for number, (_, writer) in enumerate(pairs):
            writer.write(frame(b"%04d" % number))
        for number, (reader, _) in enumerate(pairs):
            assert await reader.readexactly(4) == b"%04d" % number

    run(scenario)


# ---- the streams of brokers and of blocking clients


def test_a_brokers_stream(run):
    async def scenario(house: House) -> None:
        stream = await connect_tls(house.trusting)("localhost", house.port)
        await stream.write(frame(b"x" * 700_000))
        answer = memoryview(bytearray(700_000))
        await stream.read_exactly(answer)
        assert answer == b"x" * 700_000
        house.connections[0].close()
        with pytest.raises(ConnectionResetError):
            await stream.read_exactly(memoryview(bytearray(1)))
        stream.close()

    run(scenario)


def test_a_brokers_stream_checks_the_other_side(run, tmp_path):
    async def scenario(house: House) -> None:
        wrong_host = house.authority.issue("server", "another.example")
        house.terms.use(wrong_host)
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            await connect_tls(house.trusting)("localhost", house.port)
        unchecked = lambda: house.trusting(ssl_endpoint_identification_algorithm="")  # noqa: E731
        (await connect_tls(unchecked)("localhost", house.port)).close()
        house.terms.use(Authority(tmp_path).issue("server"))
        with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
            await connect_tls(house.trusting)("localhost", house.port)
        house.terms.use(house.authority.issue("server", expired=True))
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            await connect_tls(house.trusting)("localhost", house.port)
        await until(lambda: not house.connections)

    run(scenario)


def test_a_stream_to_a_port_on_which_nobody_listens_is_refused(run):
    async def scenario(house: House) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            await connect_tls(house.trusting)("127.0.0.1", port)

    run(scenario)


@pytest.mark.parametrize("blocking", [True, False])
def test_a_listener_that_stays_silent_ends_an_attempt_to_connect(blocking, monkeypatch):
    monkeypatch.setattr(tls_streams, "HANDSHAKE_SECONDS_MAX", 0.2)
    context = ssl.create_default_context()

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            began = asyncio.get_running_loop().time()
            if blocking:
                attempt = asyncio.to_thread(BlockingStream, ("127.0.0.1", port), 0.2, context)
            else:
                attempt = connect_tls(lambda: context)("127.0.0.1", port)
            with pytest.raises(TimeoutError):
                await attempt
            assert asyncio.get_running_loop().time() - began < 5

    asyncio.run(main())


def test_a_blocking_stream_through_another_address_wants_the_certificate_of_its_own(run):
    async def scenario(house: House) -> None:
        context = house.trusting()
        through = "127.0.0.1", house.port

        def opened(name: str) -> None:
            BlockingStream(through, 5, context, name).close()

        await asyncio.to_thread(opened, "localhost")
        with pytest.raises(ssl.SSLCertVerificationError, match=r"broker-0\.example"):
            await asyncio.to_thread(opened, "broker-0.example")

    run(scenario)


def test_a_blocking_stream(run):
    async def scenario(house: House) -> None:
        context = house.trusting()

        def talk() -> bytes:
            stream = BlockingStream(("localhost", house.port), 5, context)
            stream.write(frame(b"x" * 50_000), 5)
            got = bytearray()
            buffer = bytearray(1000)
            while len(got) < 50_000:
                assert stream.readable_within(5)
                got += buffer[: stream.read_into(memoryview(buffer), 5)]
            assert not stream.readable_within(0.01)
            stream.close()
            return bytes(got)

        assert await asyncio.to_thread(talk) == b"x" * 50_000

    run(scenario)


@pytest.mark.parametrize("blocking", [True, False])
def test_a_client_without_tls_is_told_so(blocking):
    """Java's brokers answer a client that doesn't speak TLS by an alert, which looks like an answer of 352 MB."""

    async def alert(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(b"\x15\x03\x03\x00\x02\x02\x46")
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(alert, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        if blocking:
            asking = asyncio.to_thread(BlockingConnection, Address("127.0.0.1", port), "me")
        else:
            asking = Peer(connect_tcp, "127.0.0.1", port, "me").request(18, 0, b"", 5)
        with pytest.raises((ConnectionLost, ProtocolError), match="speaks TLS, and this client doesn't"):
            await asking
        server.close()

    asyncio.run(main())


def test_a_throttled_client_is_measured_and_muted(run):
    """The time of encryption counts, and bytes that lie decrypted in the channel wait as those in the socket do."""

    async def scenario(house: House) -> None:
        reader, writer = await house.connect()
        writer.write(frame(b"who."))
        await reader.readexactly(14)
        (connection,) = house.connections
        meter = connection.metered()
        connection.mute(0.2)
        begun = asyncio.get_running_loop().time()
        writer.write(frame(b"x" * 3_000_000) + frame(b"then"))
        assert (await reader.readexactly(3_000_004))[-4:] == b"then"
        assert asyncio.get_running_loop().time() - begun >= 0.2
        assert meter.take_ns() > 0

    run(scenario)
