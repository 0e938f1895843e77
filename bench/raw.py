"""A client over plain sockets, for requests without batching: one record a request, one request in flight.

A request's bytes are built once. Sending it costs this client two system calls and little else, so that the figures are
the broker's.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ottla.protocol.batches import Record, build_batch
from ottla.protocol.codecs import Codec
from ottla.protocol.frames import request_frame
from ottla.protocol.messages import write_request

PRODUCE, PRODUCE_VERSION = 0, 9
FETCH, FETCH_VERSION = 1, 12


def produce_request(topic: str, value: bytes, acks: int = 1, records: int = 1) -> bytes:
    """A whole Produce frame, with a batch for partition 0 that has the same record `records` times."""
    return batch_request(topic, [value] * records, acks)


def batch_request(topic: str, values: Sequence[bytes], acks: int = 1, codec: int = Codec.none) -> bytes:
    """A whole Produce frame, with a batch of these values for partition 0."""
    now_ms = int(time.time() * 1000)
    records = [Record(offset, now_ms, None, value, []) for offset, value in enumerate(values)]
    batch = bytes(build_batch(records, codec=codec))
    body = write_request(
        PRODUCE,
        PRODUCE_VERSION,
        {
            "transactional_id": None,
            "acks": acks,
            "timeout": 30_000,
            "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}],
        },
    )
    return request_frame(PRODUCE, PRODUCE_VERSION, 1, "bench", body)


def fetch_request(topic: str, offset: int, max_bytes: int, session: tuple[int, int] = (0, -1)) -> bytes:
    """A whole Fetch frame, which reads from `offset` of partition 0 without waiting. `session` is the id and the epoch
    of a fetch session; by default there is none."""
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": max_bytes, "current_leader_epoch": -1}
    body = write_request(
        FETCH,
        FETCH_VERSION,
        {
            "replica_id": -1,
            "max_wait": 0,
            "min_bytes": 0,
            "max_bytes": max_bytes,
            "isolation_level": 0,
            "session_id": session[0],
            "session_epoch": session[1],
            "topics": [{"topic": topic, "partitions": [partition]}],
            "forgotten_topics_data": [],
            "rack_id": "",
        },
    )
    return request_frame(FETCH, FETCH_VERSION, 1, "bench", body)


@dataclass(slots=True)
class Exchanged:
    """The result of `exchange`: the number of answered requests, and the latency of each in seconds."""

    count: int = 0
    latencies: list[float] = field(default_factory=list)


def exchange(bootstrap: str, request: bytes, connections: int, count: int) -> Exchanged:
    """Sends `request` over each connection again and again, one in flight, until exactly `count` are answered in all.

    Raises RuntimeError if a connection is closed. Answers are counted, not parsed: the caller checks the outcome.
    """
    host, _, port = bootstrap.rpartition(":")
    sockets = {}
    poll = select.epoll()
    for _ in range(connections):
        sock = socket.create_connection((host, int(port)), 30)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sockets[sock.fileno()] = sock
        poll.register(sock.fileno(), select.EPOLLIN)
    done = Exchanged()
    began = dict.fromkeys(sockets, 0.0)
    missing = dict.fromkeys(sockets, 0)  # bytes of the answer that are still to come
    buffer = bytearray(1 << 20)
    now = time.perf_counter
    latencies = done.latencies
    try:
        for descriptor, sock in list(sockets.items())[:count]:
            began[descriptor] = now()
            sock.sendall(request)
        answered = 0
        while answered < count:
            for descriptor, _ in poll.poll(30):
                sock = sockets[descriptor]
                got = sock.recv_into(buffer)
                if not got:
                    raise RuntimeError("the broker closed the connection")
                left = missing[descriptor]
                if not left:
                    left = 4 + int(struct.unpack_from(">i", buffer)[0])
                left -= got
                missing[descriptor] = left
                if left:
                    continue
                time_now = now()
                latencies.append(time_now - began[descriptor])
                answered += 1
                if answered + len(sockets) <= count:
                    began[descriptor] = time_now
                    sock.sendall(request)
        done.count = answered
    finally:
        for sock in sockets.values():
            sock.close()
        poll.close()
    return done
