"""Which cluster this broker belongs to: the store and the log directories must agree.

A store that doesn't know the cluster of our data is the wrong one, or an empty or stale one. Following it could delete
topics, so the broker doesn't start.
"""

from __future__ import annotations

from uuid import uuid4

from ottla.metadata import keys
from ottla.metadata.follower import Follower
from ottla.metadata.model import Cluster
from ottla.metadata.store import Guard, Put, Store, UnknownOutcome


class StartupError(Exception):
    """The broker can't start; the message says why and what to do."""


async def agree_on_cluster_id(store: Store, follower: Follower, held: str | None) -> str:
    """The cluster's id. `held` is the one that the log directories carry, None for new directories; a new cluster is
    given an id. Raises StartupError where they differ."""
    stored = follower.image.cluster_id
    if not stored and held is None:
        stored = await _found_cluster(store)
    if not stored:
        raise StartupError(
            f"the metadata store is empty, but the log directories belong to cluster {held}: give the store of that "
            "cluster (ottla.metadata.store), or other directories (log.dirs)"
        )
    if held is not None and held != stored:
        raise StartupError(
            f"the log directories belong to cluster {held}, the metadata store to cluster {stored}: give the store of "
            "that cluster (ottla.metadata.store), or other directories (log.dirs)"
        )
    return stored


async def _found_cluster(store: Store) -> str:
    cluster = Cluster(keys.uuid_text(uuid4()))
    while True:
        try:
            await store.transact([Guard(keys.CLUSTER, 0)], [Put(keys.CLUSTER, cluster.encode())])
            break
        except UnknownOutcome:
            continue
    snapshot = await store.read(keys.CLUSTER)
    return Cluster.decode(snapshot.entries[0]).id
