"""The maximal number of connections, and the connections that are accepted when it is reached, as in Kafka's
ConnectionQuotas."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ottla.net.connection import Connection
from ottla.net.server import Limits, Listener, Server
from ottla.protocol.received import Memory
from tests.unit.net.test_connection import ORDINARY, frame
from tests.unit.waiting import until

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def answer(connection: Connection, buffer: Memory, start: int, end: int) -> list[bytes]:
    return [b"here"]


class House:
    """A server with the named listeners."""

    def __init__(self, server: Server, listeners: dict[str, Listener]) -> None:
        self.server = server
        self.listeners = listeners

    async def connect(self, listener: str) -> Stream:
        return await asyncio.open_connection("127.0.0.1", self.listeners[listener].port)

    async def served(self, listener: str) -> Stream:
        """A connection over which a request was served."""
        stream = await self.connect(listener)
        await ask(stream)
        return stream


async def ask(stream: Stream) -> None:
    reader, writer = stream
    writer.write(frame(ORDINARY, b"who?"))
    assert await reader.readexactly(4) == b"here"


async def ended(stream: Stream) -> bool:
    try:
        return await asyncio.wait_for(stream[0].read(), 10) == b""
    except ConnectionResetError:
        return True


def run(scene: Callable[[House], Awaitable[None]], names: tuple[str, ...], limits: Limits) -> None:
    async def main() -> None:
        server = Server(answer, limits, frozenset())
        listeners = {name: await server.listen(name, "127.0.0.1", 0) for name in names}
        server.accept()
        try:
            async with asyncio.timeout(60):
                await scene(House(server, listeners))
        finally:
            await server.close()

    asyncio.run(main())


def test_clients_that_take_all_connections_dont_shut_followers_out() -> None:
    async def scene(house: House) -> None:
        clients = [await house.served("CLIENTS") for _ in range(3)]
        followers = [await house.served("BROKERS")]
        assert house.server.connection_count == 3
        assert house.server.connections_closed_for_others == 1
        assert house.server.connections_refused == 0
        assert await ended(clients[0])
        for stream in clients[1:] + followers:
            await ask(stream)

    run(scene, ("CLIENTS", "BROKERS"), Limits(connections_max=3, inter_broker_listener="BROKERS"))


def test_the_connection_that_was_used_longest_ago_makes_way() -> None:
    async def scene(house: House) -> None:
        clients = [await house.served("CLIENTS") for _ in range(3)]
        await asyncio.sleep(2.5)  # the sweeper runs once a second
        for stream in (clients[0], clients[2]):
            await ask(stream)
        await house.served("BROKERS")
        assert await ended(clients[1])
        for stream in (clients[0], clients[2]):
            await ask(stream)

    run(scene, ("CLIENTS", "BROKERS"), Limits(connections_max=3, inter_broker_listener="BROKERS"))


def test_brokers_close_clients_connections_only() -> None:
    async def scene(house: House) -> None:
        followers = [await house.served("BROKERS") for _ in range(2)]
        # there is no client's connection to close; Kafka lets this one in, too
        followers.append(await house.served("BROKERS"))
        assert house.server.connection_count == 3
        assert await ended(await house.connect("CLIENTS"))
        assert house.server.connections_closed_for_others == 0
        for stream in followers:
            await ask(stream)

    limits = Limits(
        connections_max=2, listener_connections_max={"BROKERS": 9, "CLIENTS": 9}, inter_broker_listener="BROKERS"
    )
    run(scene, ("CLIENTS", "BROKERS"), limits)


def test_the_brokers_listener_keeps_the_bound_of_its_own() -> None:
    async def scene(house: House) -> None:
        await house.served("CLIENTS")
        followers = [await house.served("BROKERS") for _ in range(2)]
        assert await ended(await house.connect("BROKERS"))
        assert house.server.connections_refused == 1
        for stream in followers:
            await ask(stream)

    limits = Limits(connections_max=3, listener_connections_max={"BROKERS": 2}, inter_broker_listener="BROKERS")
    run(scene, ("CLIENTS", "BROKERS"), limits)


def test_a_listener_with_a_bound_leaves_room_to_the_others() -> None:
    async def scene(house: House) -> None:
        await house.served("CLIENTS")
        assert await ended(await house.connect("CLIENTS"))
        await house.served("OTHERS")
        await house.served("OTHERS")

    run(scene, ("CLIENTS", "OTHERS"), Limits(connections_max=3, listener_connections_max={"CLIENTS": 1}))


def test_the_only_listener_isnt_protected_from_its_own_clients() -> None:
    async def scene(house: House) -> None:
        first = await house.served("BOTH")
        assert await ended(await house.connect("BOTH"))
        await ask(first)

    run(scene, ("BOTH",), Limits(connections_max=1, inter_broker_listener="BOTH"))


def test_a_storm_of_clients_keeps_no_follower_out() -> None:
    """A broker connects while many clients connect again and again. There are never more connections than allowed."""

    async def scene(house: House) -> None:
        stop = False

        async def storm() -> None:
            while not stop:
                try:
                    reader, writer = await house.connect("CLIENTS")
                    writer.write(frame(ORDINARY, b"who?"))
                    await reader.read(4)
                except OSError:
                    await asyncio.sleep(0)

        clients = [asyncio.create_task(storm()) for _ in range(20)]
        await until(lambda: house.server.connection_count == 5)
        for _ in range(20):
            stream = await house.served("BROKERS")
            assert house.server.connection_count <= 5
            await ask(stream)
            stream[1].close()
        stop = True
        await asyncio.gather(*clients)

    run(scene, ("CLIENTS", "BROKERS"), Limits(connections_max=5, inter_broker_listener="BROKERS"))


def test_counts_by_address_stay_right() -> None:
    async def scene(house: House) -> None:
        for _ in range(6):
            await house.served("CLIENTS" if house.server.connection_count < 2 else "BROKERS")
        assert house.server.connections_by_host == {"127.0.0.1": house.server.connection_count}
        for listener in house.listeners.values():
            for connection in list(listener.connections):
                connection.close()
        assert house.server.connections_by_host == {}

    run(scene, ("CLIENTS", "BROKERS"), Limits(connections_max=2, inter_broker_listener="BROKERS"))


def test_a_bound_that_is_lowered_closes_what_was_used_longest_ago() -> None:
    async def scene(house: House) -> None:
        clients = [await house.served("CLIENTS") for _ in range(4)]
        follower = await house.served("BROKERS")
        await asyncio.sleep(1.5)
        await ask(clients[3])
        house.server.limits = Limits(connections_max=2, inter_broker_listener="BROKERS")
        for stream in clients[:3]:
            assert await ended(stream)
        for stream in (clients[3], follower):
            await ask(stream)

    run(scene, ("CLIENTS", "BROKERS"), Limits(inter_broker_listener="BROKERS"))


def test_a_connection_that_cant_be_looked_at_keeps_no_others_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the fix, an unforeseen error ended the sweeper for good, without a message."""
    strange: list[Connection] = []
    idle = Connection.idle

    def looked_at(connection: Connection) -> bool:
        if connection in strange and not errors:
            errors.append(connection)
            raise ZeroDivisionError
        return bool(idle.__get__(connection))

    errors: list[Connection] = []

    async def scene(house: House) -> None:
        first, second = await house.served("CLIENTS"), await house.served("CLIENTS")
        strange.append(next(iter(house.listeners["CLIENTS"].connections)))
        monkeypatch.setattr(Connection, "idle", property(looked_at))
        assert await ended(first)
        assert await ended(second)
        assert errors

    run(scene, ("CLIENTS",), Limits(idle_seconds_max=1))


def test_a_server_that_turns_away_hangs_up_on_everybody_until_it_lets_them_in() -> None:
    async def scene(house: House) -> None:
        there = await house.served("CLIENTS")
        house.server.turn_away("the metadata store doesn't answer this broker")
        assert await ended(there)
        assert await ended(await house.connect("CLIENTS"))
        assert await ended(await house.connect("BROKERS"))
        assert house.server.connection_count == 0
        house.server.let_in()
        await house.served("CLIENTS")
        await house.served("BROKERS")

    run(scene, ("CLIENTS", "BROKERS"), Limits())


class GivenRates:
    """Rates that answer what the test has set, and note which connections they were asked about."""

    def __init__(self, delays: list[int], holds: list[int]) -> None:
        self.delays, self.holds = delays, holds
        self.asked: list[tuple[str, bool, str]] = []

    def accepted(self, listener: str, protected: bool, now_ms: int) -> int:
        return self.delays.pop(0) if self.delays else 0

    def hold_ms(self, listener: str, protected: bool, host: str, now_ms: int) -> int:
        self.asked.append((listener, protected, host))
        return self.holds.pop(0) if self.holds else 0


def run_with(rates: GivenRates, scene: Callable[[House], Awaitable[None]], names: tuple[str, ...]) -> None:
    async def rated(house: House) -> None:
        house.server.rates = rates
        await scene(house)

    run(rated, names, Limits(inter_broker_listener="BROKERS"))


def test_clients_that_connect_too_fast_wait_in_the_listeners_queue() -> None:
    rates = GivenRates([0, 400], [])

    async def scene(house: House) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        streams = [await house.served("CLIENTS")]
        assert loop.time() - began < 0.4
        second, third = await house.connect("CLIENTS"), await house.connect("CLIENTS")
        streams.append(await house.served("BROKERS"))
        assert house.server.connection_count == 2, "another listener accepts meanwhile"
        await ask(second)
        assert loop.time() - began >= 0.4
        await ask(third)
        assert house.server.connections_throttled == 1
        assert house.server.connection_count == len(streams) + 2

    run_with(rates, scene, ("CLIENTS", "BROKERS"))
    assert rates.asked == [
        ("CLIENTS", False, "127.0.0.1"),
        ("BROKERS", True, "127.0.0.1"),
        *[("CLIENTS", False, "127.0.0.1")] * 2,
    ]


def test_a_connection_of_an_address_that_is_too_fast_is_held_unread_and_closed() -> None:
    async def scene(house: House) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        reader, writer = await house.connect("CLIENTS")
        writer.write(frame(ORDINARY, b"who?"))
        assert await ended((reader, writer))
        assert loop.time() - began >= 0.3
        assert house.server.connection_count == 0
        stream = await house.served("CLIENTS")
        assert house.server.connections_by_host == {"127.0.0.1": 1}
        await ask(stream)
        assert house.server.connections_throttled == 1

    run_with(GivenRates([], [300]), scene, ("CLIENTS",))


def test_the_number_of_connections_that_are_held_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.net.server.HELD_MAX", 2)

    async def scene(house: House) -> None:
        held = [await house.connect("CLIENTS") for _ in range(2)]
        assert await ended(await house.connect("CLIENTS"))
        assert not any(reader.at_eof() for reader, _ in held)

    run_with(GivenRates([], [60_000] * 3), scene, ("CLIENTS",))


def test_a_server_that_closes_drops_the_connections_that_wait() -> None:
    async def scene(house: House) -> None:
        held, delayed = await house.connect("CLIENTS"), await house.connect("CLIENTS")
        await until(lambda: house.server.connections_throttled == 2)
        await house.server.close()
        assert await ended(held)
        assert await ended(delayed)

    run_with(GivenRates([0, 60_000], [60_000]), scene, ("CLIENTS",))
