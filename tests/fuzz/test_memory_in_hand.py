"""Recompression stays within the memory budget and `max.message.bytes`, on a running broker under overload."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest

from ottla.protocol.batches import iterate_headers
from ottla.protocol.codecs import Codec, compress
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import write_request
from tests.fuzz.bad_batches import PRODUCE, produced
from tests.fuzz.made_batches import record, seal
from tests.fuzz.test_bad_batches import create, end_offset
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.wire import Wire

MEGABYTE = 1 << 20
BUDGET = 64 * MEGABYTE
# Memory outside of the budget: 64 KiB that each of twelve connections may hold in each direction without asking, the
# windows of the codecs in four threads, and memory that the interpreter and its allocator take for the first requests
# and keep.
ALLOWANCE = 16 * MEGABYTE
FETCH = 1


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaBroker]:
    """A broker for this module alone, with a budget of 64 MiB. Its topics store gzip, no compression, or the client's
    codec."""
    settings = {"ottla_buffered_memory_bytes_max": str(BUDGET), "socket_request_max_bytes": str(BUDGET // 2)}
    running = OttlaBroker(tmp_path_factory.mktemp("in-hand"), **settings)
    with Wire(running.bootstrap) as wire:
        create(
            wire,
            {
                "gzipped": {"compression.type": "gzip", "max.message.bytes": str(4 * MEGABYTE)},
                "unpacked": {"compression.type": "uncompressed"},
                "as-it-comes": {},
            },
        )
    yield running
    running.stop()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.parametrize("codec", [Codec.gzip, Codec.snappy, Codec.lz4, Codec.zstd], ids=lambda codec: codec.name)
def test_the_size_is_checked_again_after_the_conversion(broker: OttlaBroker, codec: Codec) -> None:
    """A batch of a few KB would have 16 MiB after the conversion. The topic allows batches of one MiB, so the batch is
    refused."""
    small = seal(compress(codec, record(0, value=bytes(500_000))), 1, now_ms(), codec=codec)
    swells = seal(compress(codec, record(0, value=bytes(16 * MEGABYTE))), 1, now_ms(), codec=codec)
    assert len(swells) < MEGABYTE
    before = broker.resident_bytes()
    with Wire(broker.bootstrap, 60) as wire:
        end = end_offset(wire, "unpacked")
        answer, message = produced(wire, "unpacked", swells)
        assert answer.error == "message_too_large"
        assert "max.message.bytes" in (message or "")
        assert end_offset(wire, "unpacked") == end
        assert produced(wire, "unpacked", small)[0].error == "none"
        assert produced(wire, "as-it-comes", swells)[0].error == "none", (
            "with the client's codec the batch isn't too large"
        )
    assert broker.resident_bytes() - before < 30 * MEGABYTE


def test_twelve_connections_that_recompress_stay_within_the_budget(broker: OttlaBroker) -> None:
    """Each connection sends 40 batches of a MiB without waiting, 480 MiB in all. Before the fix, the broker copied all
    of them before the budget counted them."""
    dice = random.Random(7)
    bodies = [record(0, value=dice.randbytes(MEGABYTE // 2) * 2) for _ in range(3)]
    connections, requests = 12, 40
    before = highest = broker.resident_bytes()
    failures: list[object] = []

    def client(number: int) -> None:
        with Wire(broker.bootstrap, 300) as wire:
            sender = threading.Thread(target=send, args=(wire, number))
            sender.start()
            for _ in range(requests):
                body = wire.receive()
                if ErrorCode.none.value.to_bytes(2, "big", signed=True) not in body:
                    failures.append(body)
            sender.join()

    def send(wire: Wire, number: int) -> None:
        for at in range(requests):
            batch = seal(bodies[(number + at) % 3], 1, now_ms())
            sets = [{"name": "gzipped", "partition_data": [{"index": 0, "records": batch}]}]
            wire.ask(PRODUCE, 9, write_request(PRODUCE, 9, {"acks": 1, "timeout": 60_000, "topic_data": sets}))

    with Wire(broker.bootstrap, 60) as wire:
        end = end_offset(wire, "gzipped")
    threads = [threading.Thread(target=client, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        highest = max(highest, broker.resident_bytes())
        time.sleep(0.02)
    assert failures == []
    with Wire(broker.bootstrap, 60) as wire:
        assert end_offset(wire, "gzipped") == end + connections * requests
    grown = highest - before
    print(f"the broker grew by {grown / MEGABYTE:.0f} MiB, budget {BUDGET // MEGABYTE}")
    assert grown < BUDGET + ALLOWANCE


def test_a_connections_batches_keep_their_order_whatever_they_hold(broker: OttlaBroker) -> None:
    """Large and small batches, compressed or not, go to one partition. A batch that a thread checks isn't overtaken by
    later batches of its connection."""
    dice = random.Random(3)
    sizes = [dice.choice((10, 200_000, 900_000, 30_000)) for _ in range(60)]
    with Wire(broker.bootstrap, 120) as wire:
        first = end_offset(wire, "as-it-comes")
        for at, size in enumerate(sizes):
            codec = dice.choice(list(Codec))
            body = record(0, key=b"%d" % at, value=dice.randbytes(size // 4) * 4)
            batch = seal(
                compress(codec, body),
                1,
                now_ms(),
                codec=codec,
                producer_id=4711,
                producer_epoch=0,
                base_sequence=at,
            )
            acks = 1 if at % 5 else 0
            sets = [{"name": "as-it-comes", "partition_data": [{"index": 0, "records": batch}]}]
            wire.ask(PRODUCE, 9, write_request(PRODUCE, 9, {"acks": acks, "timeout": 60_000, "topic_data": sets}))
        for at in range(len(sizes)):
            if at % 5:
                wire.receive()
        assert end_offset(wire, "as-it-comes") == first + len(sizes), "a batch out of order would have been refused"
        partition = {
            "partition": 0,
            "fetch_offset": first,
            "partition_max_bytes": 90 * MEGABYTE,
            "current_leader_epoch": -1,
        }
        asked = {
            "replica_id": -1,
            "max_bytes": 90 * MEGABYTE,
            "session_epoch": -1,
            "topics": [{"topic": "as-it-comes", "partitions": [partition]}],
        }
        records = wire.call(FETCH, 11, asked).responses[0].partitions[0].records
        found = [header.base_sequence for _, header in iterate_headers(records)]
        assert found == list(range(len(sizes)))
