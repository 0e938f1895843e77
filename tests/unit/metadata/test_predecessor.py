"""Whether the owner of a lease is alive, by the store's answers. A restart of the store is no sign of life."""

from __future__ import annotations

import asyncio
import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.metadata import keys
from ottla.metadata.model.brokers import Broker, Endpoint
from ottla.metadata.predecessor import SignOfLife
from ottla.metadata.registration import NodeIdTaken, Registration
from ottla.metadata.renewal import RenewalTask
from ottla.metadata.store import LeaseLeft, Put
from tests.simulation.loop import SimulationLoop, run
from tests.simulation.store import StoreServer

SESSION_S = 9.0


class EtcdLease:
    """A lease as etcd counts it: in whole seconds, with the whole time again under each new leader, by a clock that may
    be a little fast or slow.
    """

    def __init__(self, ttl_s: float, pace: float) -> None:
        self.ttl_s = ttl_s
        self.pace = pace
        self.term = 1
        self.ends_at = ttl_s

    def elected(self, now: float) -> None:
        self.term += 1
        self.ends_at = now * self.pace + self.ttl_s + 1.0

    def kept_alive(self, now: float) -> None:
        self.ends_at = now * self.pace + self.ttl_s

    def left(self, now: float) -> LeaseLeft:
        seconds = math.trunc(self.ends_at - now * self.pace)
        return LeaseLeft(seconds - (seconds <= 0), seconds + 1, self.term)


@given(
    st.floats(2, 60),
    st.floats(0.999, 1.001),
    st.lists(st.tuples(st.floats(0.01, 4), st.floats(0, 2), st.booleans()), max_size=60),
)
def test_a_lease_that_nobody_keeps_alive_is_never_a_sign_of_life(
    ttl_s: float, pace: float, steps: list[tuple[float, float, bool]]
) -> None:
    lease, sign, now = EtcdLease(ttl_s, pace), SignOfLife(), 0.0
    for pause_s, takes_s, elected in steps:
        now += pause_s
        if elected:
            lease.elected(now)
        answered = now + takes_s
        assert not sign.seen(now, answered, lease.left(now + takes_s / 2))
        now = answered


@given(st.floats(2, 60), st.floats(0.999, 1.001), st.floats(0, 1), st.floats(0, 0.1))
def test_a_lease_that_is_kept_alive_is_a_sign_of_life_soon(
    ttl_s: float, pace: float, begins: float, takes_s: float
) -> None:
    lease, sign, now = EtcdLease(ttl_s, pace), SignOfLife(), begins * ttl_s
    renewed = 0.0
    while now < (begins + 1 / 2) * ttl_s + 2.5:
        while renewed + ttl_s / 4 <= now:
            renewed += ttl_s / 4
            lease.kept_alive(renewed)
        if sign.seen(now, now + takes_s, lease.left(now + takes_s / 2)):
            return
        now += takes_s + 0.25
    pytest.fail("the renewals of the lease weren't recognised as signs of life")


def test_an_answer_that_names_the_term_before_its_own_proves_nothing() -> None:
    """A member of etcd may pass on the new leader's answer before it knows of the election itself, so the answer has
    the old term.
    """
    sign = SignOfLife()
    assert not sign.seen(0.0, 0.0, LeaseLeft(1, 2, term=4))
    assert not sign.seen(0.5, 0.5, LeaseLeft(9, 10, term=4))
    assert not sign.seen(0.75, 0.75, LeaseLeft(9, 10, term=5))
    assert not sign.seen(1.0, 1.0, LeaseLeft(9, 10, term=5))


def test_a_store_that_restarts_again_and_again_makes_nobody_of_the_dead_alive() -> None:
    """Each restart gives the lease of the dead predecessor its full TTL again. So this lease lives well beyond a
    session."""

    async def body(loop: SimulationLoop) -> None:
        server = StoreServer(loop, Random(1))
        await dead_predecessor(server)
        begun = registration(server)
        registering = asyncio.ensure_future(begun.register())
        for _ in range(4):
            await asyncio.sleep(SESSION_S - 2)
            restart(server)
            assert not registering.done()
        restarted_at = loop.time()
        await registering
        assert loop.time() - restarted_at < SESSION_S + 1
        await begun.withdraw()

    run(Random(0), body)


def test_a_predecessor_with_a_longer_session_is_waited_for() -> None:
    async def body(loop: SimulationLoop) -> None:
        server = StoreServer(loop, Random(1))
        await dead_predecessor(server, 5 * SESSION_S)
        begun = registration(server)
        await begun.register()
        assert 5 * SESSION_S - 1 < loop.time() < 5 * SESSION_S + 1
        await begun.withdraw()

    run(Random(0), body)


@pytest.mark.parametrize("longer", [1, 5])
def test_a_living_holder_is_named_after_a_session_though_the_store_restarts(longer: int) -> None:
    async def body(loop: SimulationLoop) -> None:
        server = StoreServer(loop, Random(1))
        holder = registration(server, longer * SESSION_S)
        await holder.register()
        began = loop.time()
        registering = asyncio.ensure_future(registration(server).register())
        await asyncio.sleep(SESSION_S - 1)
        restart(server)
        with pytest.raises(NodeIdTaken, match="stop that broker"):
            await registering
        assert SESSION_S < loop.time() - began < SESSION_S + longer * SESSION_S / 2 + 1
        assert (await server.connect().read(keys.broker(7))).entries
        await holder.withdraw()

    run(Random(0), body)


def test_a_holder_that_dies_while_it_is_waited_for_is_waited_for_to_the_end() -> None:
    async def body(loop: SimulationLoop) -> None:
        server = StoreServer(loop, Random(1))
        holder = registration(server)
        await holder.register()
        begun = registration(server)
        registering = asyncio.ensure_future(begun.register())
        await asyncio.sleep(SESSION_S - 1)
        await holder.abandon()  # the lease isn't renewed any more
        assert (await registering).epoch > holder.epoch
        await begun.withdraw()

    run(Random(0), body)


def registration(server: StoreServer, session_s: float = SESSION_S) -> Registration:
    store = server.connect()
    return Registration(
        store, Broker(7, -1, {"L": Endpoint("L", "h", 9092)}), RenewalTask(store), session_s, told=lambda broker: None
    )


async def dead_predecessor(server: StoreServer, session_s: float = SESSION_S) -> None:
    store = server.connect()
    lease = await store.grant(session_s)
    await store.transact([], [Put(keys.broker(7), Broker(7, -1, {}, incarnation="dead").encode(), lease)])


def restart(server: StoreServer) -> None:
    """Restarts the store as etcd does: all keys stay, and leases have their whole time again."""
    server.replace(server.copy())
    server.put_back()
