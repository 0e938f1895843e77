"""Brokers of this version beside brokers of a later one: the later version's fields survive, and its new formats aren't
used yet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from ottla.metadata import keys
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.features import FEATURES, TRANSACTIONS
from ottla.metadata.model.value import FORMAT_MAX
from ottla.metadata.store import NO_LEASE, Committed, Entry, Guard, Put
from tests.peers.ottla_cluster import OttlaCluster

TOPIC = "t"
LATER = """
import runpy, sys
from ottla.metadata.model import value
value.FORMAT_MAX += 1
sys.argv[0] = "later"
runpy.run_module("ottla.cli.server", run_name="__main__")
"""


async def read(path: Path) -> dict[str, Any]:
    """The values of all keys without a lease, except the keys of the store's lineage."""
    store = await EmbeddedStore.open(path)
    try:
        return {entry.key: json.loads(entry.value) for entry in lasting((await store.read()).entries)}
    finally:
        await store.close()


def lasting(entries: Iterable[Entry]) -> list[Entry]:
    """The entries without a lease, except the random strings by which brokers recognise their store (`lineage/`):
    only the controller adds such strings. If this test changed them, brokers would take the store for another one."""
    return [entry for entry in entries if entry.lease == NO_LEASE and not entry.key.startswith("lineage")]


async def add_fields(path: Path) -> None:
    """Adds an unknown field to each value, as a later version would."""
    store = await EmbeddedStore.open(path)
    for entry in lasting((await store.read()).entries):
        value = json.dumps(json.loads(entry.value) | {"of_later": entry.key}).encode()
        guard = Guard(entry.key, entry.mod_revision)
        assert isinstance(await store.transact([guard], [Put(entry.key, value)]), Committed)
    await store.close()


async def format_max(path: Path) -> dict[str, int]:
    store = await EmbeddedStore.open(path)
    found = {entry.key: json.loads(entry.value)["format_max"] for entry in (await store.read("brokers/")).entries}
    await store.close()
    return found


def alter(admin: AdminClient, kind: ConfigResource.Type, resource: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    wanted = ConfigResource(kind, resource, incremental_configs=[entry])
    admin.incremental_alter_configs([wanted])[wanted].result(30)


def test_versions_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "metadata"
    cluster = OttlaCluster(tmp_path)
    try:
        for newer in cluster.brokers[:2]:
            newer.stop()
            newer.command = [newer.command[0], "-c", LATER, *newer.command[3:]]
            newer.start_again()
        assert asyncio.run(format_max(path)) == {
            "brokers/0": FORMAT_MAX + 1,
            "brokers/1": FORMAT_MAX + 1,
            "brokers/2": FORMAT_MAX,
        }
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 3, 3)])[TOPIC].result(30)
        alter(admin, ConfigResource.Type.TOPIC, TOPIC, "retention.ms", "1000000")
        alter(admin, ConfigResource.Type.BROKER, "1", "log.cleaner.backoff.ms", "20000")
        cluster.wait_until_in_sync(TOPIC, 3, 3)
        asyncio.run(add_fields(path))
        before = asyncio.run(read(path))

        # Every writer of metadata writes: administrators, and the controller and leaders at each broker's death and
        # return.
        for victim in cluster.brokers:
            victim.kill()
            cluster.wait("somebody leads all", lambda: min(cluster.leader(TOPIC, index) for index in range(3)) >= 0)
            victim.start_again()
            cluster.wait_until_in_sync(TOPIC, 3, 3)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        alter(admin, ConfigResource.Type.TOPIC, TOPIC, "retention.ms", "2000000")
        alter(admin, ConfigResource.Type.BROKER, "1", "log.cleaner.backoff.ms", "30000")
        admin.create_partitions([NewPartitions(TOPIC, 4)])[TOPIC].result(30)

        after = asyncio.run(read(path))
        later_formats = {key: value["format"] for key, value in after.items() if value["format"] != 1}
        assert later_formats == {keys.feature(TRANSACTIONS): FEATURES[TRANSACTIONS].format}
        changed = {key for key, value in before.items() if after.get(key) != value}
        assert {key.partition("/")[0] for key in changed} == {"configs", "partitions", "ready", "topics"}
        assert {key for key in before if after[key].get("of_later") != key} == set()
        cluster.stop()
    finally:
        cluster.close()
