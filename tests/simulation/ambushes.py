"""Faults of several steps (ambushes). The simple faults cause each of the steps, too, but hardly ever in the order that
does the most harm.

All steps are legal: processes die, links break and leases end, and are restored later. An ambush waits until the
cluster has reached a state, and then causes the next fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.group.partitioning import OFFSETS_TOPIC
from ottla.broker.transaction.partitioning import TRANSACTIONS_TOPIC
from ottla.metadata import keys
from ottla.metadata.model.brokers import ControllerHolder
from ottla.metadata.model.partitions import NO_LEADER

from .topics import KEYED, TOPIC, TRANSACTED, UNCLEAN

if TYPE_CHECKING:
    from .cluster import Node
    from .faults import Faults
    from .observer import Key

    Ambush = Callable[[Faults, Node, Key, str], Coroutine[None, None, None]]

LOOK_S = 0.02
TOPICS = (TOPIC, OFFSETS_TOPIC, KEYED, TRANSACTED, TRANSACTIONS_TOPIC)


def deposed_leader_leads_again(faults: Faults) -> str:
    """A leader gets records that no follower has, is replaced by another leader, truncates, and leads again, perhaps
    before its producers know the other leader. Producers may then resend records that this leader has in its log, but
    can't commit.
    """
    return _ambush_a_leader(faults, TOPICS, ("kill", "power", "lease"), _depose_and_reelect, isr_min=2)


def _ambush_a_leader(
    faults: Faults, topics: tuple[str, ...], hows: tuple[str, ...], ambush: Ambush, isr_min: int = 1
) -> str:
    """Begins an ambush of the leader of a random partition of these topics. Returns a description of the ambush; empty
    if none begins."""
    state = faults.random.choice(faults.observer.states(topics) or [None])
    if state is None or state.leader == NO_LEADER or len(state.isr) < isr_min:
        return ""
    node = faults.world.nodes[state.leader]
    if node.process is None or node.stopping:
        return ""
    how = faults.random.choice(hows)
    faults.world.loop.create_task(ambush(faults, node, (state.topic_id, state.index), how))
    return f"{node.host}, the leader of partition {state.index} of {state.topic_id}, by {how}"


def _cut_fetches(faults: Faults, node: Node) -> list[str]:
    """Cuts the links from all other hosts to this one, so that no fetch arrives. Returns the other hosts."""
    others = [other.host for other in faults.world.nodes.values() if other is not node]
    for other in others:
        faults.world.network.cut_link(other, node.host)
    return others


async def _depose_and_reelect(faults: Faults, node: Node, key: Key, how: str) -> None:
    world, random = faults.world, faults.random
    others = _cut_fetches(faults, node)
    faults.bell.ring()
    await asyncio.sleep(0.005 + random.expovariate(100))
    if any((state.topic_id, state.index) == key for state in faults.observer.states((KEYED,))):
        for _ in range(3):  # the leader fills whole segments that no follower has
            await asyncio.sleep(random.uniform(0.5, 1.5) * int(faults.knobs.keyed_topic["segment.ms"]) / 1000)
            faults.bell.ring()
    if random.random() < 0.5:
        world.network.reset_between("client", node.host)
        await asyncio.sleep(random.uniform(0.1, 0.4))
        faults.bell.ring()
        await asyncio.sleep(random.uniform(0.0, 0.1))
    if faults.over:
        return
    if how == "kill":
        node.kill()
    elif how == "power":
        node.lose_power()
    else:
        _end_registration(faults, node)
    await _until(faults, lambda: _leader(faults, key) not in (node.id, NO_LEADER), 2 * faults.session_s)
    interim = world.nodes.get(_leader(faults, key))
    hidden = interim is not None and interim is not node and random.random() < 0.6
    if interim is not None and hidden and not faults.over:
        world.network.cut_link("client", interim.host)
    for other in others:
        world.network.heal_link(other, node.host)
    if not faults.over:
        faults.start(node)
    await _until(faults, lambda: _in_sync(faults, node, key), 3 * faults.session_s)
    if interim is not None and interim is not node and not faults.over:
        if interim.process is not None and random.random() < 0.7:
            interim.kill()
            faults.later(0.3, 1.5 * faults.session_s, lambda: faults.start(interim))
        else:
            _end_registration(faults, interim)
    await _until(faults, lambda: _leader(faults, key) == node.id, faults.session_s)
    if interim is not None and hidden:
        world.network.heal_link("client", interim.host)


def restart_at_once(faults: Faults) -> str:
    """A host restarts before any other host has noticed that it was down: its registration ends just before or just
    after the host is back. The controller may be replaced, or may see the change of registration late. The host may
    register before it can reach the other hosts.
    """
    node = faults.running()
    if node is None:
        return ""
    random = faults.random
    how = random.choice(("kill", "power", "power"))
    if random.random() < 0.5:
        for other in faults.world.nodes.values():
            if other is not node and other.store is not None:
                faults.slow_down(other.store, random.choice((0.2, 0.8)))
    if how == "kill":
        node.kill()
    else:
        node.lose_power()
    first, then = (lambda: _end_registration(faults, node)), (lambda: faults.start(node))
    if random.random() < 0.5:
        first, then = then, first
    faults.later(0.0, 0.1, first)
    faults.later(0.1, 0.3, then)
    if random.random() < 0.5:
        _mute(faults, node)
    if random.random() < 0.5:
        faults.later(0.0, 0.3, faults.controller_loss)
    return f"{node.host} by {how}"


def restart_of_all(faults: Faults) -> str:
    """All brokers are stopped cleanly. Perhaps no producer got the acknowledgements of the last appends: the producers
    resend these batches to leaders that know them only from their disks.
    """
    random, network = faults.random, faults.world.network
    nodes = [node for node in faults.world.nodes.values() if node.serving and not node.stopping]
    mute = [node.host for node in nodes if random.random() < 0.8]
    for host in mute:
        network.cut_link(host, "client")
    faults.bell.ring()

    def put_right() -> None:
        for host in mute:
            network.heal_link(host, "client")

    for node in nodes:
        faults.later(0.02, 0.2, partial(faults.restart, node))
    faults.later(0.3, 1.5, put_right)
    return ", ".join(f"{node.host}{' cut off from clients' if node.host in mute else ''}" for node in nodes)


def last_in_sync_goes(faults: Faults) -> str:
    """A leader is the only in-sync replica, gets records that no other replica has, and dies or is cut off. An unclean
    election makes a replica without these records the leader. A former leader that doesn't know of the election may
    acknowledge more records.
    """
    return _ambush_a_leader(faults, (UNCLEAN,), ("kill", "power", "store"), _leave_alone)


async def _leave_alone(faults: Faults, node: Node, key: Key, how: str) -> None:
    world, random = faults.world, faults.random
    others = _cut_fetches(faults, node)
    await _until(faults, lambda: _isr(faults, key) == (node.id,), 2.5)
    faults.bell.ring()
    await asyncio.sleep(0.005 + random.expovariate(20))
    if faults.over:
        return
    if how == "kill":
        node.kill()
    elif how == "power":
        node.lose_power()
    else:
        world.cut_off_from_store(node)
    await _until(faults, lambda: _leader(faults, key) not in (node.id, NO_LEADER), 2 * faults.session_s)
    faults.bell.ring()
    await asyncio.sleep(random.uniform(0.0, 0.4))
    if faults.over:
        return
    for other in others:
        world.network.heal_link(other, node.host)
    world.reach_store_again(node)
    faults.start(node)


def controller_sleeps(faults: Faults) -> str:
    """A broker loses its registration, and the controller is paused while it handles this loss. The paused controller
    goes on after another controller has taken over."""
    entry = faults.world.store.entries.get(keys.controller.key)
    if entry is None:
        return ""
    node = faults.world.nodes.get(ControllerHolder.decode(entry).broker_id)
    if node is None or node.process is None or node.process.paused:
        return ""
    others = [other for other in faults.world.nodes.values() if other is not node and other.process is not None]
    if not others:
        return ""
    random = faults.random
    victim = random.choice(others)
    _end_registration(faults, victim)
    faults.later(0.0, 0.006, node.pause)
    faults.later(0.01, faults.session_s, faults.controller_loss)
    faults.later(0.2, 2 * faults.session_s, node.resume)
    if random.random() < 0.5:
        faults.later(0.0, faults.session_s, faults.kill)
    return f"{node.host}, after {victim.host} had lost its registration"


def _mute(faults: Faults, node: Node) -> None:
    """Cuts the links from a host to all others for a while."""
    network = faults.world.network
    others = [other.host for other in faults.world.nodes.values() if other is not node]
    for other in others:
        network.cut_link(node.host, other)

    def put_right() -> None:
        for other in others:
            network.heal_link(node.host, other)

    faults.later(0.3, 1.0, put_right)


def _end_registration(faults: Faults, node: Node) -> None:
    entry = faults.world.store.entries.get(keys.broker(node.id))
    if entry is not None and entry.lease:
        faults.world.store.revoke(entry.lease)


def _leader(faults: Faults, key: Key) -> int:
    state = faults.observer.state(key)
    return NO_LEADER if state is None else state.leader


def _isr(faults: Faults, key: Key) -> tuple[int, ...]:
    state = faults.observer.state(key)
    return () if state is None else state.isr


def _in_sync(faults: Faults, node: Node, key: Key) -> bool:
    state = faults.observer.state(key)
    return state is not None and node.id in state.isr and node.serving


async def _until(faults: Faults, condition: Callable[[], bool], limit_s: float) -> None:
    for _ in range(int(limit_s / LOOK_S)):
        if condition() or faults.over:
            return
        await asyncio.sleep(LOOK_S)
