"""The fault that another metadata store replaces the right one for a while, and the invariants meanwhile.

- The other store is empty, another cluster's, an older copy, or an older copy that other writes have taken beyond the
  right store's revision. A copy replaces the store only after every broker's disk has got a lineage word
  that is newer than the copy. Lineage words are random strings by which processes recognise the store
  (`ottla.metadata.lineage`): a broker that knows no newer word can't recognise the copy as a wrong store.
- No process writes to a wrong store, so no process registers there or makes a decision there. Keys may vanish from a
  wrong store only because their leases end.
- No broker deletes a replica that the right store assigns to it. When the right store is back, the cluster converges.

A member of etcd that lags behind isn't a wrong store: the events of its watches come late, and no broker may stop
because of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.lineage_file import read_known_of
from ottla.metadata import keys
from ottla.metadata.lineage import WORDS_PER_ROW
from ottla.metadata.model.cluster import Cluster, LineageRow
from ottla.metadata.model.partitions import Partition
from ottla.metadata.model.topics import TopicIntent
from ottla.metadata.store import Entry
from ottla.storage.names import parse_partition_name

from .store import StoreState

if TYPE_CHECKING:
    from .cluster import Node
    from .faults import Faults

EMPTY, FOREIGN, OLDER, AHEAD = "an empty one", "another cluster's", "a copy", "a copy that is ahead"
LOOKED_AGAIN_S = 0.1
COPY_AGE_S_MAX = 4.0
AHEAD_BY = 10_000
LAGS_S = (0.1, 0.5, 2.0)


def replace_store(faults: Faults, kind: str) -> str:
    """Begins the fault: the store is replaced now, or later, when all brokers can recognise a copy as an older one."""
    world = faults.world
    server = world.store
    if server.right is not None:
        return ""
    if kind == EMPTY:
        return _put(faults, StoreState(1, 0, {}, (), {}), kind)
    if kind == FOREIGN:
        cluster = Entry(keys.cluster.key, Cluster("another").encode(), 2, 2)
        return _put(faults, StoreState(server.revision + 5, 0, {keys.cluster.key: cluster}, (), {}), kind)
    copy = server.copy()
    if kind == AHEAD:
        copy = copy._replace(revision=copy.revision + AHEAD_BY)
    until = world.loop.time() + COPY_AGE_S_MAX

    def look() -> None:
        if faults.over or server.right is not None or world.loop.time() > until:
            return
        if all(_has_seen_more(node, copy) for node in world.nodes.values()):
            world.note(f"fault: another store: {_put(faults, copy, kind)}")
            world.counts[f"store replaced by {kind}"] += 1
        else:
            world.loop.in_world(LOOKED_AGAIN_S, look)

    world.loop.in_world(LOOKED_AGAIN_S, look)
    return f"{kind}, of revision {copy.revision}"


def put_back(faults: Faults) -> None:
    """Puts the right store back if another one is in its place, and checks the invariants."""
    world = faults.world
    server = world.store
    if server.right is None:
        return
    server.put_back()
    for node, held, losses in faults.held_before:
        there = {*node.disk.names_in("/data")}
        if node.power_losses == losses and (gone := held - there):
            faults.observer.wrong.append(
                f"{node.host} deleted the replicas {sorted(gone)} while a wrong store answered"
            )
    faults.observer.wrong += [f"{key} was written to a wrong store" for key in server.trespasses]
    server.trespasses.clear()
    world.note("the right store is back")


def lag(faults: Faults) -> str:
    """Interrupts a broker's watch, which goes on at a member of etcd that lags behind."""
    node = faults.running()
    if node is None or node.store is None:
        return ""
    delay_s = faults.random.choice(LAGS_S)
    faults.slow_down(node.store, delay_s)
    node.store.interrupted()
    return f"{node.host} by {delay_s} s"


def _put(faults: Faults, state: StoreState, kind: str) -> str:
    server = faults.world.store
    faults.held_before = [(node, _held(faults, node), node.power_losses) for node in faults.world.nodes.values()]
    server.replace(state)
    faults.later(0.2, 1.2 * faults.session_s, lambda: put_back(faults))
    return f"{kind}, of revision {state.revision}"


def _has_seen_more(node: Node, copy: StoreState) -> bool:
    """Whether the node's disk has a lineage word that is newer than the copy's last word."""
    if node.broker is None or not node.serving or node.disk.failing:
        return False
    known = read_known_of(node.disk, "/data")
    return known is not None and known.number > _newest(copy)


def _newest(copy: StoreState) -> int:
    rows = {
        keys.lineage.of(key): LineageRow.decode(entry)
        for key, entry in copy.entries.items()
        if key.startswith(keys.lineage.prefix)
    }
    row = max(rows, default=0)
    return row * WORDS_PER_ROW + (len(rows[row].words) // 8 if rows else 0) - 1


def _held(faults: Faults, node: Node) -> set[str]:
    """The replicas on a node's disk that the right store assigns to it."""
    entries = faults.world.store.entries
    found = set()
    for name in node.disk.names_in("/data"):
        if (parsed := parse_partition_name(name)) is None or keys.topic(parsed[0]) not in entries:
            continue
        intent = TopicIntent.decode(entries[keys.topic(parsed[0])])
        state = entries.get(keys.partition(intent.id, parsed[1]))
        if state is not None and node.id in Partition.decode(state).replicas:
            found.add(name)
    return found
