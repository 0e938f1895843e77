"""Finds the cluster that a store belongs to, and checks that a broker's data belongs to the same cluster.

A broker must not lose data because its store is empty, half restored, or another cluster's. So if a broker's log
directories belong to a cluster that isn't the store's, the broker refuses to start, and deletes nothing.

A new cluster begins with the highest levels of all features (`features.py`), as a cluster of Apache Kafka 4.3 does. A
cluster that an earlier version of Ottla made continues with the levels that it has.
"""

from __future__ import annotations

import os
from uuid import UUID

from ottla.uuids import uuid_text

from . import keys
from .features import FEATURES, OFF
from .model.cluster import Cluster
from .model.settings import Feature
from .store import Committed, ForeignStore, Guard, Put, Store, UnknownOutcome


async def find_cluster(store: Store) -> Cluster | None:
    """The cluster that the store belongs to; None if the store is empty. Raises ForeignStore, StoreUnavailable."""
    found = [entry for entry in (await store.read(keys.cluster.key)).entries if entry.key == keys.cluster.key]
    if not found:
        return None
    cluster = Cluster.decode(found[0])
    if cluster.restoring:
        raise ForeignStore(
            "a restore of the metadata store hasn't ended; if it was interrupted, run `ottla metadata restore` again"
        )
    return cluster


async def join_cluster(
    store: Store, known_id: str | None, wanted_id: str | None = None, *, may_begin: bool = True
) -> Cluster:
    """The cluster of the store. If the store is empty, a new cluster is written to it.

    `known_id` is the cluster id in the data directories (None: they are new). `wanted_id` is the id for a new cluster
    (None: a random one). If `may_begin` is False, no new cluster is written. It must be False if some data directory
    can't be read, because that directory may belong to a cluster. Raises ForeignStore, StoreUnavailable.
    """
    while True:
        cluster = await find_cluster(store)
        if cluster is not None:
            if known_id is not None and known_id != cluster.id:
                raise ForeignStore(
                    f"the data directories belong to cluster {known_id}, but the metadata store holds cluster"
                    f" {cluster.id}; point this broker to its own store, or to other data directories"
                )
            return cluster
        if known_id is not None:
            raise ForeignStore(
                f"the data directories belong to cluster {known_id}, but the metadata store is empty; restore the store"
                " from a backup, or start with new data directories"
            )
        if not may_begin:
            raise ForeignStore(
                "the metadata store is empty, and a data directory that can't be read may belong to a cluster; mend the"
                " directory, or take it out of log.dirs"
            )
        cluster = Cluster(wanted_id or uuid_text(UUID(bytes=os.urandom(16), version=4)))
        try:
            levels = [
                Put(keys.feature(name), Feature(feature.of_new_clusters, format=feature.format).encode())
                for name, feature in FEATURES.items()
                if feature.of_new_clusters != OFF
            ]
            result = await store.transact(
                [Guard(keys.cluster.key, 0)], [Put(keys.cluster.key, cluster.encode()), *levels]
            )
        except UnknownOutcome:
            continue
        if isinstance(result, Committed):
            return cluster
