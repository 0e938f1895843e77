"""What rights and quotas add to a Produce or Fetch, as a part of a fixed amount of interpreted work.

Whole requests are handled in this process, with and without them, in windows by turns; the cheapest windows are
compared. The bound stands for 0.5 µs on the machine of `docs/performance.md`, where that work takes 5 µs in a quiet
moment.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.api import fetch, produce
from ottla.broker.api.heartbeat import API
from ottla.broker.api.registry import Route
from ottla.broker.authorization.rules import Rules
from ottla.broker.authorizer import AclAuthorizer, AllowEverything
from ottla.broker.dispatch import Dispatcher
from ottla.broker.request import Request
from ottla.broker.throttling import Throttling
from ottla.metadata.image import Changed, Image
from ottla.metadata.model.settings import Quota
from ottla.protocol.messages import write_request
from tests.unit.broker.api.test_produce_and_fetch import FETCH, PRODUCE, VERSION, Stage, batch_of
from tests.unit.broker.without_quotas import without_quotas

INTERPRETED = pickle.dumps(("topic", 0, None))
WINDOW = 50  # requests, in less than a millisecond: short enough that other processes leave some windows undisturbed
WINDOWS = 1_000
PART_MAX = 0.1  # measured: 0.07 and 0.05 for the rights of Produce and Fetch, 0.03 for the quotas of others
NO_PARTITION = 7  # of the Produce requests: an append costs much more than a right, and never twice the same
HEARTBEAT = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}
READ = {
    "max_wait": 0,
    "min_bytes": 1,
    "max_bytes": 1 << 20,
    "session_epoch": -1,
    "topics": [{"topic": "t", "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]}],
}


def seconds(calls: Sequence[Callable[[], Any]]) -> list[float]:
    """The time of each call, in its cheapest window."""
    cheapest = [float("inf")] * len(calls)
    for _ in range(WINDOWS):
        for number, call in enumerate(calls):
            began = time.perf_counter()
            for _ in range(WINDOW):
                call()
            cheapest[number] = min(cheapest[number], (time.perf_counter() - began) / WINDOW)
    return cheapest


def interpreted() -> None:
    pickle._loads(INTERPRETED)  # type: ignore[attr-defined]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    for index in (0, 1):
        (tmp_path / str(index)).mkdir()
    made = Stage(tmp_path)
    client: Any = made.client
    client.principal, client.client_host, client.listener = "User:a", "10.0.0.1", SimpleNamespace(name="CLIENTS")
    return made


@pytest.mark.parametrize(
    ("module", "key", "version"),
    [(produce, PRODUCE, 9), (fetch, FETCH, VERSION)],
    ids=["produce", "fetch"],
)
def test_a_known_right_costs_little(stage: Stage, module: Any, key: int, version: int) -> None:
    message: dict[str, Any] = READ
    client: Any = stage.client
    if key == PRODUCE:
        partition = {"index": NO_PARTITION, "records": bytes(batch_of([bytes(100)]))}
        message = {"acks": 1, "timeout": 1000, "topic_data": [{"name": "t", "partition_data": [partition]}]}
    body = write_request(key, version, message)
    everybody, rights = stage.broker.authorizer, AclAuthorizer(Rules(["User:a"], allow_if_none=False), Image)

    def handled(authorizer: Any) -> Any:
        stage.broker.authorizer = authorizer
        frame = bytearray(body)
        return module.serve(stage.broker, Request(key, version, 1, "me", client), frame, 0, len(frame))

    async def measure() -> tuple[float, float, float]:
        assert handled(rights)
        without, with_rights, work = seconds([lambda: handled(everybody), lambda: handled(rights), interpreted])
        return without, with_rights, work

    without, with_rights, work = asyncio.run(measure())
    print(f"{without * 1e6:.2f} µs, with rights {with_rights * 1e6:.2f} µs, the fixed work {work * 1e6:.2f} µs")
    assert with_rights - without < PART_MAX * work


def test_the_quotas_of_others_cost_little(stage: Stage) -> None:
    without, others = without_quotas(), without_quotas()
    entity = (("user", "other"),)
    image = Image(quotas={entity: Quota({"producer_byte_rate": 1.0})})
    others.changed(image, Changed(quotas=frozenset({entity})))
    assert others.quotas.enforced
    client: Any = stage.client
    frame = struct.pack(">hhih", API.key, 4, 7, 2) + b"me\0" + write_request(API.key, 4, HEARTBEAT)

    async def measure() -> tuple[float, float, float]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_result({"error_code": 0})
        routes = {API.key: Route(API, taskless=lambda *_: future)}
        memory = SimpleNamespace(answered=lambda key, size: None)
        server = SimpleNamespace(memory=memory)
        broker: Any = SimpleNamespace(spawn=None, server=server, authorizer=AllowEverything())

        def dispatched(throttling: Throttling) -> Callable[[], Any]:
            dispatcher = Dispatcher(broker, routes, throttling)
            return lambda: dispatcher.dispatch(client, bytearray(frame), 0, len(frame))

        first, second, work = seconds([dispatched(without), dispatched(others), interpreted])
        return first, second, work

    first, second, work = asyncio.run(measure())
    print(f"{first * 1e6:.2f} µs, with quotas of others {second * 1e6:.2f} µs, the fixed work {work * 1e6:.2f} µs")
    assert second - first < PART_MAX * work
