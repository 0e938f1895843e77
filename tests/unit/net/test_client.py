"""The blocking client, if brokers don't answer: it fails in time, and names the broker."""

from __future__ import annotations

import socket
import time

import pytest

from ottla.net.client import PATIENCE_S, Client, Unreachable
from ottla.net.fetching import RangeReader
from ottla.net.names import LATEST, TopicPartition
from tests.peers.scripted_cluster import FETCH, LIST_OFFSETS, METADATA, ScriptedCluster, Topic
from tests.peers.wire import free_port


def test_a_port_that_nobody_listens_on() -> None:
    port = free_port()
    began = time.monotonic()
    with Client(f"127.0.0.1:{port}", api_timeout_ms=400) as client, pytest.raises(Unreachable, match=rf":{port}\b"):
        client.metadata()
    assert time.monotonic() - began < 2


def test_a_listener_that_stays_silent() -> None:
    """The kernel accepts the connection, but no answer ever comes; the request's own time-out is far away."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        began = time.monotonic()
        with Client(f"127.0.0.1:{port}", api_timeout_ms=400) as client:
            with pytest.raises(Unreachable, match=rf"Metadata failed for 400 ms .*:{port}\b"):
                client.metadata()
            assert time.monotonic() - began < 2


T0 = TopicPartition("t", 0)


def test_a_silent_broker_is_waited_for_once() -> None:
    """Before the fix, the silent broker was asked first again after each failure, each time for as long as a request
    may take."""
    with ScriptedCluster(2, t=Topic([10])) as cluster, Client(cluster.bootstrap) as client:
        cluster.silent.add(0)
        cluster.leader = 1
        began = time.monotonic()
        for _ in range(5):
            assert client.list_offsets({T0: LATEST})[T0].offset == 10
            client.close()
        assert time.monotonic() - began < 2 * PATIENCE_S


@pytest.mark.parametrize("during", [METADATA, LIST_OFFSETS, FETCH])
def test_a_leader_that_falls_silent_and_leads_no_longer_is_left(during: int) -> None:
    """A machine that dies closes no connections. Before the fix, half a minute passed until the request's time-out."""
    with ScriptedCluster(3, t=Topic([10])) as cluster, Client(cluster.bootstrap) as client:
        client.metadata(["t"])
        reader = iter(RangeReader(client, T0, 0, 10))
        if during != METADATA:
            client.leader(T0)
        cluster.silent.add(0)
        cluster.leader = 1
        began = time.monotonic()
        if during == METADATA:
            assert client.metadata(["t"]).topics["t"].leaders == {0: 1}
        elif during == LIST_OFFSETS:
            assert client.list_offsets({T0: LATEST})[T0].offset == 10
        else:
            assert next(reader).next_offset == 10
        assert time.monotonic() - began < 3 * PATIENCE_S


def test_a_leader_that_is_only_slow_is_waited_for() -> None:
    with ScriptedCluster(2, t=Topic([10])) as cluster:
        with Client(cluster.bootstrap, request_timeout_ms=1000 * int(2 * PATIENCE_S), api_timeout_ms=100) as client:
            client.leader(T0)
            cluster.silent.add(0)
            began = time.monotonic()
            with pytest.raises(Unreachable, match=r"Fetch of t-0 at offset 0 failed .* timed out"):
                next(iter(RangeReader(client, T0, 0, 10)))
            assert time.monotonic() - began > 2 * PATIENCE_S
        assert cluster.asked.count((0, FETCH)) == 1
