"""Requests are charged to their clients' quotas, as the metadata sets them, by every way in which requests are
answered."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.api.declaration import Api, NoRightNeeded
from ottla.broker.api.heartbeat import API as HEARTBEAT
from ottla.broker.api.produce import API as PRODUCE
from ottla.broker.api.registry import Route
from ottla.broker.api.write_txn_markers import API as WRITE_TXN_MARKERS
from ottla.broker.authorizer import AllowEverything
from ottla.broker.dispatch import Dispatcher
from ottla.broker.metrics.quotas import METRICS
from ottla.broker.quota.entities import Client
from ottla.broker.throttling import Throttling, metered
from ottla.metadata.image import Changed
from ottla.metadata.model.settings import Quota
from ottla.net.connection import POSTPONED
from ottla.net.metering import Meter
from ottla.net.pending import Pending
from ottla.protocol.messages import read_response, write_request
from ottla.settings.config import BrokerConfig

Entity = tuple[tuple[str, str | None], ...]
ALICE: Entity = (("user", "alice"),)
MILLISECOND = 1_000_000  # ns


class World:
    """Quotas whose clock the test sets, with tasks of the running loop."""

    def __init__(self, settings: str = "") -> None:
        self.now = 1000.0
        self.config = BrokerConfig.from_sources(
            f"node.id=0\nlog.dirs=/x\nlisteners=PLAINTEXT://127.0.0.1:9092\n{settings}"
        )
        self.tasks: list[asyncio.Task[None]] = []
        self.throttling = Throttling(self.config, lambda: self.now, self._spawn)
        self.image: Any = SimpleNamespace(quotas={})

    def _spawn(self, coroutine: Any, name: str) -> None:
        self.tasks.append(asyncio.ensure_future(coroutine))

    def set(self, entity: Entity, **limits: float) -> None:
        """The metadata shows these limits of an entity; no limits mean that the entity is gone."""
        if limits:
            self.image.quotas[entity] = Quota(limits)
        else:
            self.image.quotas.pop(entity, None)
        self.throttling.changed(self.image, Changed(quotas=frozenset({entity})))

    def measured(self, kind: str) -> list[Client]:
        quota = self.throttling.quotas.by_kind[kind]
        return [client for client, _, _ in quota.measured(self.throttling.now_ms())]


class Connected:
    """Stands in for a connection, and notes for how many seconds it is muted. Its meter's clock is the test's."""

    def __init__(self, principal: str = "User:alice") -> None:
        self.principal = principal
        self.listener = SimpleNamespace(name="PLAINTEXT")
        self.id, self.client_host = 1, "127.0.0.1"
        self.closed = False
        self.muted: list[float] = []
        self.work_ns = 0
        self._meter = Meter(lambda: self.work_ns)

    def metered(self) -> Meter:
        return self._meter

    def mute(self, seconds: float) -> None:
        self.muted.append(seconds)

    def answered(self) -> None:
        """Called when the `parts` of a request's answer are ready; does nothing."""

    def close(self, reason: str = "") -> None:
        self.closed = True


def test_without_limits_no_request_is_charged() -> None:
    world = World()
    assert not world.throttling.quotas.enforced
    world.set(ALICE, producer_byte_rate=1)
    assert world.throttling.quotas.enforced
    world.set(ALICE)
    assert not world.throttling.quotas.enforced


def test_limits_of_addresses_charge_no_requests() -> None:
    world = World()
    world.set((("ip", "10.0.0.1"),), connection_creation_rate=1)
    assert not world.throttling.quotas.enforced


def test_the_identity_is_that_of_the_connection_at_the_request() -> None:
    world, client = World(), Connected("User:ANONYMOUS")
    world.set(ALICE, producer_byte_rate=100_000)
    connection: Any = client
    assert world.throttling.charge(connection, 0, "c", 9_000_000).produced() == 0
    client.principal = "User:alice"
    assert world.throttling.charge(connection, 0, None, 1_100_000).produced() == 1000
    assert client.muted == [1.0]
    assert world.measured("producer_byte_rate") == [Client("alice", "")]


def test_client_ids_of_great_length_arent_kept() -> None:
    world, client = World(), Connected()
    client.listener = SimpleNamespace(name="CLIENTS")
    world.set((("user", "bob"),), producer_byte_rate=1)
    connection: Any = client
    assert not world.throttling.charges(connection, "c" * 256)
    assert not world.throttling.charges(connection, "c" * 257)
    assert list(world.throttling._charged) == [("User:alice", "c" * 256)]
    world.set((("client-id", "d" * 257),), producer_byte_rate=1)
    assert world.throttling.charges(connection, "d" * 257)


def test_a_produce_request_is_charged_once_and_its_late_answer_states_the_rest() -> None:
    world, client = World(), Connected()
    world.set(ALICE, producer_byte_rate=100_000)
    connection: Any = client
    charge = world.throttling.charge(connection, 0, "c", 1_100_000)
    assert charge.produced() == 1000
    world.now += 0.4
    assert charge.produced() == 600
    world.now += 5
    assert charge.produced() == 0
    assert client.muted == [1.0]


def test_the_windows_are_those_of_the_settings() -> None:
    world, client = World("quota.window.num=3\nquota.window.size.seconds=2"), Connected()
    world.set(ALICE, producer_byte_rate=100_000, request_percentage=1)
    connection: Any = client
    assert world.throttling.charge(connection, 0, "c", 400_000).produced() == 0
    assert world.throttling.charge(connection, 0, "c", 100_000).produced() == 1000
    client.work_ns = 0
    charge = world.throttling.charge(connection, 3, "c", 10)
    with charge.meter:
        client.work_ns = 1_000 * MILLISECOND
        assert charge.answered() == 2000, "at most one window"


# ---- by dispatch


def _frame(api: Api, version: int, body: bytes) -> bytearray:
    return bytearray(struct.pack(">hhih", api.key, version, 7, 2) + b"me" + b"\0" + body)


HEARTBEAT_BODY = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}


def _dispatched(world: World, client: Connected, routes: list[Route], frame: bytearray) -> Any:
    """The reply of dispatch, with its parts if they come within a few turns of the loop."""

    async def scene() -> Any:
        memory = SimpleNamespace(answered=lambda key, size: None)
        broker: Any = SimpleNamespace(
            spawn=asyncio.get_running_loop().create_task,
            server=SimpleNamespace(memory=memory),
            authorizer=AllowEverything(),
        )
        dispatcher = Dispatcher(broker, {route.api.key: route for route in routes}, world.throttling)
        connection: Any = client
        reply = dispatcher.dispatch(connection, frame, 0, len(frame))
        for _ in range(5):
            await asyncio.sleep(0)
        return reply.parts if isinstance(reply, Pending) else reply

    return asyncio.run(scene())


def _works(client: Connected, milliseconds: int) -> None:
    client.work_ns += milliseconds * MILLISECOND


def _in_task(client: Connected, work_ms: int) -> Route:
    async def handle(*_: object) -> Any:
        _works(client, work_ms // 2)
        await asyncio.sleep(0)
        _works(client, work_ms - work_ms // 2)
        return {"error_code": 0}

    return Route(HEARTBEAT, handle)


def _at_once(client: Connected, work_ms: int) -> Route:
    def handle(*_: object) -> Any:
        _works(client, work_ms)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_result({"error_code": 0})
        return future

    return Route(HEARTBEAT, taskless=handle)


@pytest.mark.parametrize("way", [_in_task, _at_once])
def test_every_answer_that_has_a_throttle_time_states_it(way: Callable[[Connected, int], Route]) -> None:
    world, client = World(), Connected()
    world.set((("client-id", "me"),), request_percentage=1)
    frame = _frame(HEARTBEAT, 4, write_request(HEARTBEAT.key, 4, HEARTBEAT_BODY))
    for work_ms, throttle_ms in ((100, 0), (5, 500), (500, 1000)):
        parts = _dispatched(world, client, [way(client, work_ms)], frame)
        answer = read_response(HEARTBEAT.key, 4, b"".join(map(bytes, parts))[9:])
        assert answer.throttle_time.total_seconds() * 1000 == throttle_ms
    assert client.muted == [0.5, 1.0]


def test_an_answer_without_a_field_for_the_throttle_time_is_sent_as_it_is() -> None:
    world, client = World(), Connected()
    world.set((("client-id", "me"),), request_percentage=1)
    body = write_request(HEARTBEAT.key, 0, HEARTBEAT_BODY)
    frame = bytearray(struct.pack(">hhih", HEARTBEAT.key, 0, 7, 2) + b"me" + body)
    parts = _dispatched(world, client, [_at_once(client, 200)], frame)
    assert b"".join(map(bytes, parts)) == struct.pack(">iih", 6, 7, 0)
    assert client.muted == [1.0]


def test_a_wait_isnt_charged() -> None:
    world, client = World(), Connected()
    world.set((("client-id", "me"),), request_percentage=1)

    async def handle(*_: object) -> Any:
        await asyncio.sleep(0)
        return {"error_code": 0}

    async def others() -> None:
        _works(client, 5000)

    def spawned(*arguments: object) -> Any:
        asyncio.ensure_future(others())  # noqa: RUF006
        return handle(*arguments)

    frame = _frame(HEARTBEAT, 4, write_request(HEARTBEAT.key, 4, HEARTBEAT_BODY))
    _dispatched(world, client, [Route(HEARTBEAT, spawned)], frame)
    assert client.muted == []


def test_requests_of_brokers_are_exempt() -> None:
    world, client = World(), Connected()
    world.set((("client-id", "me"),), request_percentage=1)

    def handle(*_: object) -> Any:
        _works(client, 5000)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_result({"markers": []})
        return future

    frame = _frame(WRITE_TXN_MARKERS, 1, write_request(WRITE_TXN_MARKERS.key, 1, {"markers": []}))
    assert _dispatched(world, client, [Route(WRITE_TXN_MARKERS, taskless=handle)], frame)
    assert client.muted == []
    frame = _frame(HEARTBEAT, 4, write_request(HEARTBEAT.key, 4, HEARTBEAT_BODY))
    _dispatched(world, client, [_at_once(client, 0)], frame)
    assert client.muted == [], "the next request on the connection isn't charged for it"


def _hot(reply: Callable[[], Any]) -> Route:
    api = Api(PRODUCE.key, PRODUCE.versions, NoRightNeeded("a test"), served=PRODUCE.served)
    return Route(api, serve=lambda *_: reply())


def test_a_produce_request_whose_answer_waits_is_charged_when_it_is_taken_over() -> None:
    world, client = World(), Connected()
    world.set(ALICE, producer_byte_rate=1)
    connection: Any = client
    frame = _frame(PRODUCE, 9, bytes(100))
    assert _dispatched(world, client, [_hot(lambda: Pending(connection, 0))], frame) is None
    assert client.muted == [len(frame) - 10.0]


def test_a_produce_request_that_is_postponed_isnt_charged_yet() -> None:
    world, client = World(), Connected()
    world.set(ALICE, producer_byte_rate=1)
    assert _dispatched(world, client, [_hot(lambda: POSTPONED)], _frame(PRODUCE, 9, bytes(100))) is POSTPONED
    assert client.muted == []


def test_a_metered_coroutine_is_closed_and_thrown_into_like_any_other() -> None:
    events: list[str] = []

    async def coroutine() -> str:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            events.append("cancelled")
            raise
        finally:
            events.append("ended")
        return "never"

    async def scene() -> None:
        world, connection = World(), Connected()
        given: Any = connection
        task = asyncio.create_task(metered(world.throttling.charge(given, 3, "c", 1), coroutine()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scene())
    assert events == ["cancelled", "ended"]


@pytest.mark.parametrize(("limited", "expected"), [(False, set()), (True, {"throttling.py", "client_quotas.py"})])
def test_while_no_client_has_a_limit_a_request_calls_no_code_of_quotas(limited: bool, expected: set[str]) -> None:
    """On the hot path even a call that does nothing is too much."""
    world, client = World(), Connected()
    if limited:
        world.set(ALICE, request_percentage=50)
    called: set[str] = set()

    def note(frame: Any, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and (path.parent.name == "quota" or path.name in ("throttling.py", "metering.py")):
            called.add(path.name)

    memory = SimpleNamespace(answered=lambda key, size: None)
    broker: Any = SimpleNamespace(server=SimpleNamespace(memory=memory))
    dispatcher = Dispatcher(broker, {PRODUCE.key: _hot(lambda: [b"answer"])}, world.throttling)
    frame, given = _frame(PRODUCE, 9, bytes(100)), cast(Any, client)
    sys.setprofile(note)
    try:
        assert dispatcher.dispatch(given, frame, 0, len(frame)) == [b"answer"]
    finally:
        sys.setprofile(None)
    assert called & {"throttling.py", "client_quotas.py"} == expected
    assert limited or not called


# ---- addresses


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Addresses by name, which the event loop's resolver knows."""
    known: dict[str, str] = {}

    async def getaddrinfo(_loop: Any, name: str, *_: Any, **__: Any) -> list[Any]:
        if name not in known:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (known[name], 0))]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr("ottla.broker.throttling.RESOLVE_AGAIN_SECONDS", 0.01)
    return known


def _limited(world: World, host: str) -> bool:
    rates, now_ms = world.throttling.connection_rates, world.throttling.now_ms()
    return any(rates.hold_ms("PLAINTEXT", False, host, now_ms) for _ in range(12))


def test_limits_of_addresses_and_their_default_are_followed() -> None:
    world = World()
    world.set((("ip", "10.0.0.1"),), connection_creation_rate=1)
    assert _limited(world, "10.0.0.1")
    assert not _limited(world, "10.0.0.2")
    world.set((("ip", None),), connection_creation_rate=1)
    assert _limited(world, "10.0.0.2")
    world.set((("ip", "10.0.0.3"),), connection_creation_rate=1000)
    assert not _limited(world, "10.0.0.3")
    world.set((("ip", None),))
    assert not _limited(world, "10.0.0.4")


def test_a_name_is_resolved_and_looked_up_again_until_it_has_an_address(names: dict[str, str]) -> None:
    async def scene() -> None:
        world = World()
        world.set((("ip", "host"),), connection_creation_rate=1)
        await asyncio.sleep(0.03)
        assert not _limited(world, "10.0.0.9")
        names["host"] = "10.0.0.9"
        await asyncio.gather(*world.tasks)
        assert _limited(world, "10.0.0.9")
        world.set((("ip", "host"),))
        assert not _limited(world, "10.0.0.9")

    asyncio.run(scene())


def test_the_resolver_stops_when_the_limit_is_removed(names: dict[str, str]) -> None:
    async def scene() -> None:
        world = World()
        world.set((("ip", "nowhere"),), connection_creation_rate=1)
        await asyncio.sleep(0.02)
        world.set((("ip", "nowhere"),))
        await asyncio.wait_for(asyncio.gather(*world.tasks), 5)

    asyncio.run(scene())


def test_the_rates_of_listeners_are_those_of_the_settings_and_change_with_them() -> None:
    world = World("max.connection.creation.rate=1")
    rates, now_ms = world.throttling.connection_rates, world.throttling.now_ms()
    assert [rates.accepted("PLAINTEXT", False, now_ms) for _ in range(11)][-1] == 1000
    config, _ = world.config.with_dynamic({}, {"max.connection.creation.rate": "1000"})
    world.throttling.configured(config)
    assert rates.accepted("PLAINTEXT", False, now_ms) == 0
    config, _ = world.config.with_dynamic({"listener.name.plaintext.max.connection.creation.rate": "1"}, {})
    world.throttling.configured(config)
    assert rates.accepted("PLAINTEXT", False, now_ms) == 1000


# ---- metrics


def test_metrics_show_the_clients_that_have_a_limit_and_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    world, client = World(), Connected()
    world.set(ALICE, producer_byte_rate=100_000)
    world.set((("client-id", None),), controller_mutation_rate=2)
    connection: Any = client
    world.throttling.charge(connection, 0, "c", 1_100_000).produced()
    world.throttling.charge(connection, 19, "c", 10).mutates(23, strict=True)
    broker: Any = SimpleNamespace(throttling=world.throttling, server=SimpleNamespace(connections_throttled=3))
    values = {metric.name: list(metric.collect(broker)) for metric in METRICS}
    alice = (("resource", "Produce"), ("user", "alice"), ("clientId", ""))
    changing = (("resource", "ControllerMutation"), ("user", ""), ("clientId", "c"))
    assert values == {
        "kafka_server_quota_byte_rate": [(alice, 110_000.0)],
        "kafka_server_quota_request_time": [],
        "kafka_server_quota_exempt_request_time": [((), 0.0)],
        "kafka_server_quota_mutation_rate": [(changing, 2.3)],
        "kafka_server_quota_tokens": [(changing, -1.0)],
        "kafka_server_quota_throttle_time": [(alice, 1000.0), (changing, 0.0)],
        "ottla_connections_throttled_total": [((), 3)],
    }
    for number in range(1100):
        world.throttling.charge(connection, 19, f"c{number}", 10).mutates(1, strict=True)
    tokens = next(metric for metric in METRICS if metric.name == "kafka_server_quota_tokens")
    assert len(list(tokens.collect(broker))) == 1000


def test_time_that_no_quota_counts_is_measured_in_all() -> None:
    world, client = World(), Connected("User:broker")
    world.set(ALICE, request_percentage=1)
    connection: Any = client
    markers = world.throttling.charge(connection, 27, "b", 10)
    with markers.meter:
        client.work_ns = 200 * MILLISECOND
        assert markers.answered() == 0
    client.work_ns = 0
    unanswered = world.throttling.charge(connection, 0, "p", 10)
    unanswered.unanswered = True
    with unanswered.meter:
        client.work_ns = 300 * MILLISECOND
        assert unanswered.produced() == 0
    assert world.throttling.quotas.exempt.rate(world.throttling.now_ms()) == pytest.approx(5.0), "0.5 s in 10 s"
    assert client.muted == []


def test_only_clients_with_a_limit_and_the_brokers_listener_are_charged() -> None:
    world, client = World(), Connected("User:eve")
    client.listener.name = "CLIENTS"
    connection: Any = client
    world.set(ALICE, producer_byte_rate=1)
    assert world.throttling.quotas.enforced
    assert not world.throttling.charges(connection, "c")
    client.principal = "User:alice"
    assert world.throttling.charges(connection, "c")
    client.principal = "User:eve"
    world.set((("client-id", "c"),), request_percentage=5)
    assert world.throttling.charges(connection, "c"), "a new limit holds at once"
    assert not world.throttling.charges(connection, None)
    client.listener.name = "PLAINTEXT"
    assert world.throttling.charges(connection, None), "other brokers' requests are measured"
