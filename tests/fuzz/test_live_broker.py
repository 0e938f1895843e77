"""Malformed requests to a running broker, for every API and version that it advertises.

Each request is answered, or its connection is closed. The broker survives, and serves another client after each API.
OTTLA_FUZZ_SEED repeats a run; OTTLA_FUZZ_ROUNDS lengthens it.
"""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.protocol.flexible import is_flexible
from ottla.protocol.messages import write_request
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.wire import Closed, Wire, frame

SEED = int(os.environ.get("OTTLA_FUZZ_SEED", random.SystemRandom().randrange(2**32)))
ROUNDS = int(os.environ.get("OTTLA_FUZZ_ROUNDS", "12"))
API_VERSIONS, METADATA = 18, 3


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaBroker]:
    """A broker for this module alone."""
    running = OttlaBroker(tmp_path_factory.mktemp("fuzzed"), num_partitions="1")
    yield running
    running.stop()


def mutated(body: bytes, dice: random.Random) -> bytes:
    """A random mutation of the body: shortened, lengthened, with single bytes or a whole number changed, or replaced by
    random bytes."""
    kind = dice.randrange(6)
    data = bytearray(body)
    if kind == 0:
        return bytes(data[: dice.randrange(len(data) + 1)])
    if kind == 1:
        return bytes(data) + dice.randbytes(dice.randrange(1, 40))
    if kind == 2:
        return dice.randbytes(dice.randrange(200))
    if kind == 3 and len(data) >= 4:
        position = dice.randrange(len(data) - 3)
        struct.pack_into(">i", data, position, dice.choice((-1, -2, 2**31 - 1, -(2**31), 2**24, 0)))
        return bytes(data)
    for _ in range(dice.randrange(1, 4)):
        if data:
            data[dice.randrange(len(data))] = dice.randrange(256)
    return bytes(data)


def plausible(api_key: int) -> dict[str, Any]:
    """A body with entries in the most important arrays, so that more than an empty request is mutated."""
    partition = {"partition_index": 0, "partition": 0, "index": 0, "records": bytes(61)}
    topic = {"name": "fuzzed", "topic": "fuzzed", "partitions": [partition], "partition_data": [partition]}
    return {
        0: {"acks": 1, "timeout": 100, "topic_data": [topic]},
        1: {"replica_id": -1, "max_bytes": 1000, "session_epoch": -1, "topics": [topic]},
        2: {"replica_id": -1, "topics": [topic]},
        3: {"topics": [{"name": "fuzzed"}], "allow_auto_topic_creation": True},
        8: {"group_id": "fuzzed", "topics": [topic]},
        10: {"key": "fuzzed", "coordinator_keys": ["fuzzed"]},
        11: {
            "group_id": "fuzzed",
            "session_timeout": 6000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"x"}],
        },
        12: {"group_id": "fuzzed", "member_id": "m"},
        14: {"group_id": "fuzzed", "member_id": "m"},
        19: {
            "topics": [{"name": "fuzzed", "num_partitions": 1, "replication_factor": 1}],
            "timeout": 1000,
            "validate_only": True,
        },
        23: {"replica_id": -1, "topics": [topic]},
        32: {"resources": [{"resource_type": 2, "resource_name": "fuzzed", "configuration_keys": None}]},
    }.get(api_key, {})


def request_bytes(api_key: int, version: int, body: bytes) -> bytes:
    head = struct.pack(">hhih", api_key, version, 1, 4) + b"fuzz"
    return frame(head + (b"\x00" if is_flexible(api_key, version) else b"") + body)


@pytest.mark.timeout(600)
def test_every_api_survives_mutated_requests(broker: OttlaBroker) -> None:
    print(f"OTTLA_FUZZ_SEED={SEED}")
    dice = random.Random(SEED)
    with Wire(broker.bootstrap) as wire:
        apis = [(a.api_key, a.min_version, a.max_version) for a in wire.call(API_VERSIONS, 0).api_keys]
        wire.call(METADATA, 4, {"topics": [{"name": "fuzzed"}], "allow_auto_topic_creation": True})
    answered = closed = silent = 0
    for api_key, lowest, highest in apis:
        # Kafka advertises Produce 0 to 2 and refuses them: there is no schema to mutate.
        for version in range(max(lowest, 3) if api_key == 0 else lowest, highest + 1):
            body = write_request(api_key, version, plausible(api_key))
            for _ in range(ROUNDS):
                request = request_bytes(api_key, version, mutated(body, dice))
                with Wire(broker.bootstrap, 1.0) as wire:
                    wire.send(request)
                    try:
                        wire.receive()
                        answered += 1
                    except Closed:
                        closed += 1
                    # a Fetch, JoinGroup or SyncGroup may wait, and a Produce without acks has no answer
                    except TimeoutError:
                        silent += 1
                        assert api_key in (0, 1, 11, 14), (
                            f"no answer from API {api_key} version {version}, seed {SEED}: {request!r}"
                        )
        assert broker.process.poll() is None, f"API {api_key} ended the broker, seed {SEED}"
        with Wire(broker.bootstrap, 10) as wire:
            # UnregisterBroker may have hit the broker itself, which then registers anew.
            deadline = time.monotonic() + 10
            while not wire.call(METADATA, 4, {"topics": [], "allow_auto_topic_creation": False}).brokers:
                assert time.monotonic() < deadline, f"API {api_key} cost the broker its registration, seed {SEED}"
                time.sleep(0.05)
    print(f"{answered} answered, {closed} closed, {silent} silent")
    assert answered > 100
    assert closed > 100
