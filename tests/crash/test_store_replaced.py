"""The metadata store is replaced under running brokers: by an older copy, an empty store, or another cluster's. The
brokers stop, and their last messages say why. Their files stay unchanged, and on the right store the brokers go on with
every acknowledged record. A controller without a broker decides nothing on the wrong store. A member of etcd that only
lags behind doesn't count as a wrong store."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.metadata import keys
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.store import Committed, Put
from tests.crash.test_controller_process import ControllerAlone
from tests.peers.etcd import Etcd, leads
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.ottla_cluster import OttlaCluster, ottla_cluster
from tests.peers.wire import Wire

ALTER_PARTITION_REASSIGNMENTS = 45
RECORDS = 2500
LEARNED_S = 0.5  # seconds within which each broker reads a new lineage word


class ReplaceableStore(ABC):
    """A cluster's metadata store, which the test can replace as an administrator may: by an empty store or a copy."""

    url: str  # the value of the command line's `--store`
    copied: Path

    @abstractmethod
    def copy(self) -> None:
        """Writes a copy of the present store to `copied`."""

    @abstractmethod
    def put_copy(self, revisions: int = 0, of: ReplaceableStore | None = None) -> None:
        """Replaces the store by its copy, or by the copy of the store `of`, after `revisions` more writes to that copy.
        The replaced store is kept."""

    @abstractmethod
    def put_nothing(self) -> None:
        """Replaces the store by an empty one. The replaced store is kept."""

    @abstractmethod
    def put_back(self) -> None:
        """Puts the kept store back into its place."""


class EtcdData(ReplaceableStore):
    """The data of one etcd. Its copy is a snapshot."""

    def __init__(self, etcd: Etcd, folder: Path) -> None:
        self.url = f"etcd:{etcd.endpoint}"
        self.copied = folder / "snapshot"
        self._etcd = etcd
        self._kept = folder

    def copy(self) -> None:
        self._etcd.snapshot(self.copied)

    def put_copy(self, revisions: int = 0, of: ReplaceableStore | None = None) -> None:
        prepare = partial(self._etcd.add_revisions, revisions) if revisions else None
        self._kept = self._etcd.replace_data((of or self).copied, prepare)

    def put_nothing(self) -> None:
        self._kept = self._etcd.replace_data(None)

    def put_back(self) -> None:
        self._etcd.put_back(self._kept)


class MetadataFile(ReplaceableStore):
    """The file of an embedded store."""

    def __init__(self, file: Path) -> None:
        self.url = f"embedded:{file}"
        self.copied = file.with_name("copy")
        self._file = file
        self._kept = file.with_name("kept")

    def copy(self) -> None:
        import sqlite3

        with sqlite3.connect(self._file) as source, sqlite3.connect(self.copied) as target:
            source.backup(target)

    def put_copy(self, revisions: int = 0, of: ReplaceableStore | None = None) -> None:
        prepared = self._file.with_name("prepared")
        shutil.copy((of or self).copied, prepared)
        asyncio.run(_add_revisions(prepared, revisions))
        self.put_nothing()
        prepared.rename(self._file)

    def put_nothing(self) -> None:
        self._kept.mkdir()
        for file in self._parts(self._file.parent):
            file.rename(self._kept / file.name)

    def put_back(self) -> None:
        for file in self._parts(self._file.parent):
            file.unlink()
        for file in self._parts(self._kept):
            file.rename(self._file.parent / file.name)

    def _parts(self, folder: Path) -> list[Path]:
        return [file for file in folder.glob(f"{self._file.name}*") if file.is_file()]


async def _add_revisions(file: Path, count: int) -> None:
    """Writes to a key that isn't Ottla's, so that the store's revision grows by `count`."""
    store = await EmbeddedStore.open(file)
    for _ in range(count):
        assert isinstance(await store.transact([], [Put("elsewhere", b"")]), Committed)
    await store.close()


@pytest.fixture(params=["embedded", "etcd"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OttlaCluster]:
    members = 1 if request.param == "etcd" else 0
    cluster = OttlaCluster(tmp_path, 2, members, broker_session_timeout_ms="3000")
    yield cluster
    cluster.close()


@pytest.fixture
def store(cluster: OttlaCluster, tmp_path: Path) -> ReplaceableStore:
    return store_of(cluster, tmp_path)


def store_of(cluster: OttlaCluster, folder: Path) -> ReplaceableStore:
    return EtcdData(cluster.etcd[0], folder) if cluster.etcd else MetadataFile(folder / "metadata")


def create(cluster: OttlaCluster, topic: str, replicas: list[int]) -> None:
    new = NewTopic(topic, replica_assignment=[replicas], num_partitions=1)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([new])[topic].result(30)


def move(cluster: OttlaCluster, topic: str, target: int, source: int) -> None:
    moved = {"name": topic, "partitions": [{"partition_index": 0, "replicas": [target]}]}
    with Wire(cluster.brokers[source].bootstrap) as wire:
        assert wire.call(ALTER_PARTITION_REASSIGNMENTS, 0, {"topics": [moved]}).error_code == 0
    cluster.wait(f"{topic}-0 is moved", lambda: list(cluster.partition(topic, 0).isr_nodes) == [target])
    cluster.wait(f"{source} gives it up", lambda: not (cluster.brokers[source].data / f"{topic}-0").exists())


def produce(cluster: OttlaCluster, topic: str, values: range) -> None:
    failed: list[object] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    for value in values:
        producer.produce(topic, b"%d" % value, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(60) == 0
    assert not failed


def read_all(cluster: OttlaCluster, topic: str, count: int) -> list[int]:
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "enable.partition.eof": True, "log_level": 0}
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[int] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.append(int(message.value() or b""))
    consumer.close()
    return sorted(found)


def told(broker: OttlaBroker) -> str:
    """The last error message of a broker's process."""
    lines = [line for line in broker.log_path.read_text().splitlines() if line.startswith("ottla broker: ")]
    return lines[-1] if lines else ""


def files(broker: OttlaBroker) -> dict[str, bytes]:
    """The contents of all segments of a broker, by path."""
    return {str(file.relative_to(broker.data)): file.read_bytes() for file in broker.data.glob("*/*.log")}


def refused(broker: OttlaBroker) -> str:
    """Starts a broker on a wrong store, and returns its error message."""
    done = subprocess.run(broker.command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("ottla broker: ")]
    return sentence


def all_stop(cluster: OttlaCluster, because: str) -> None:
    for broker in cluster.brokers:
        assert broker.process.wait(40) == 1, broker.log_path.read_text()[-4000:]
        assert because in told(broker)


def until_worded(url: str) -> None:
    """Waits until the store's newest key has a lineage word, a random string that the controller adds
    (`ottla.metadata.lineage`). A broker that knows this word recognises any older copy of the store, which lacks the
    word."""
    deadline = time.monotonic() + 60
    while not _worded(held(url)):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    time.sleep(LEARNED_S)


def _worded(revisions: dict[str, int]) -> bool:
    newest = max(revisions.values())
    return any(revision == newest and key.startswith(keys.lineage.prefix) for key, revision in revisions.items())


def moved_after_the_copy(cluster: OttlaCluster, store: ReplaceableStore, *, worded: bool) -> dict[str, bytes]:
    """Produces records whose only replica is on a broker that the store's copy doesn't name. Returns the segments of
    that broker."""
    create(cluster, "t", [0])
    until_worded(store.url)
    store.copy()
    move(cluster, "t", target=1, source=0)
    produce(cluster, "t", range(RECORDS))
    if worded:
        until_worded(store.url)
    return files(cluster.brokers[1])


@pytest.mark.parametrize("worded", [True, False], ids=["a word later", "at once"])
def test_the_only_copy_outlives_an_older_store(cluster: OttlaCluster, store: ReplaceableStore, worded: bool) -> None:
    before = moved_after_the_copy(cluster, store, worded=worded)
    store.put_copy()
    all_stop(cluster, "the metadata ")
    assert files(cluster.brokers[1]) == before
    assert "the metadata store is an older copy" in refused(cluster.brokers[1])
    assert files(cluster.brokers[1]) == before
    _right_again(cluster, store)


def test_the_only_copy_outlives_an_older_store_that_is_ahead(cluster: OttlaCluster, store: ReplaceableStore) -> None:
    """After writes of other clients the older store has the higher revision, so that a watch of etcd continues without
    an error."""
    before = moved_after_the_copy(cluster, store, worded=True)
    right = held(store.url)
    store.put_copy(revisions=1000)
    all_stop(cluster, "the metadata store is an older copy" if cluster.etcd else "the metadata ")
    assert files(cluster.brokers[1]) == before
    for broker in cluster.brokers:
        assert "the metadata store is an older copy" in refused(broker)
    if not cluster.etcd:
        assert held(store.url)["elsewhere"] > max(right.values())
    assert files(cluster.brokers[1]) == before
    _right_again(cluster, store)


def test_nobody_joins_an_empty_store(cluster: OttlaCluster, store: ReplaceableStore) -> None:
    create(cluster, "t", [1, 0])
    produce(cluster, "t", range(RECORDS))
    before = [files(broker) for broker in cluster.brokers]
    store.put_nothing()
    all_stop(cluster, "the metadata ")
    for broker in cluster.brokers:
        assert "the metadata store is empty" in refused(broker)
    assert [files(broker) for broker in cluster.brokers] == before
    _right_again(cluster, store)


def test_nobody_joins_another_clusters_store(cluster: OttlaCluster, store: ReplaceableStore, tmp_path: Path) -> None:
    """The other cluster's brokers have the same ids, and a topic has the same name."""
    with ottla_cluster(tmp_path / "other", 2, len(cluster.etcd), broker_session_timeout_ms="3000") as other:
        create(other, "t", [0])
        theirs = store_of(other, tmp_path / "other")
        theirs.copy()
    create(cluster, "t", [1, 0])
    produce(cluster, "t", range(RECORDS))
    before = [files(broker) for broker in cluster.brokers]
    store.put_copy(of=theirs)
    all_stop(cluster, "the metadata ")
    for broker in cluster.brokers:
        said = refused(broker)
        assert re.search(r"the data directories belong to cluster \S+, but the metadata store holds cluster", said), (
            said
        )
    assert [files(broker) for broker in cluster.brokers] == before
    _right_again(cluster, store)


@pytest.mark.parametrize("what", ["older", "empty"])
def test_a_controller_alone_decides_nothing_in_a_wrong_store(
    cluster_of_brokers: tuple[OttlaCluster, ControllerAlone], tmp_path: Path, what: str
) -> None:
    """The brokers are paused, so that they can't report. By an older copy they would count as dead, and the controller
    would elect leaders."""
    cluster, controller = cluster_of_brokers
    store = store_of(cluster, tmp_path)
    create(cluster, "t", [0])
    until_worded(store.url)
    copied = held(store.url)
    store.copy()
    move(cluster, "t", target=1, source=0)
    produce(cluster, "t", range(RECORDS))
    until_worded(store.url)
    before = files(cluster.brokers[1])
    for broker in cluster.brokers:
        broker.pause()
    if what == "older":
        store.put_copy()
    else:
        store.put_nothing()
    assert controller.process.wait(60) == 1
    why = {"older": "store is an older copy", "empty": "store is empty"}[what] if cluster.etcd else "file "
    assert f"the controller stops: the metadata {why}" in controller.log.read_text()
    if what == "older":
        assert held(store.url) == copied
    for broker in cluster.brokers:
        broker.go_on()
    all_stop(cluster, "the metadata ")
    assert files(cluster.brokers[1]) == before
    again = ControllerAlone(store.url, 10, controller.log)
    try:
        store.put_back()
        for broker in cluster.brokers:
            broker.start_again()
        assert read_all(cluster, "t", RECORDS) == list(range(RECORDS))
    finally:
        again.process.kill()
        again.process.wait()


@pytest.fixture(params=["embedded", "etcd"])
def cluster_of_brokers(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[OttlaCluster, ControllerAlone]]:
    """Two brokers without the controller's role, and a controller without a broker."""
    members = 1 if request.param == "etcd" else 0
    settings = {"process_roles": "broker", "broker_session_timeout_ms": "3000"}
    with ottla_cluster(tmp_path, 2, members, **settings) as cluster:
        controller = ControllerAlone(store_of(cluster, tmp_path).url, 10, tmp_path / "controller.log", "3000")
        try:
            controller.until_it_decides()
            yield cluster, controller
        finally:
            controller.process.kill()
            controller.process.wait()


def test_a_member_of_etcd_that_is_behind_is_no_older_copy(tmp_path: Path) -> None:
    """For a while only this member answers. A running broker waits. A starting broker waits for as long as its settings
    say, and its error message doesn't call the store a copy."""
    patience = {"broker_session_timeout_ms": "6000", "initial_broker_registration_timeout_ms": "10000"}
    with ottla_cluster(tmp_path, 2, 3, **patience) as cluster:
        create(cluster, "t", [1, 0])
        behind, *others = sorted(cluster.etcd, key=leads)
        behind.pause()
        for number in range(5):
            create(cluster, f"later-{number}", [0, 1])
        produce(cluster, "t", range(RECORDS))
        until_worded(f"etcd:{others[0].endpoint}")
        cluster.brokers[1].stop()
        for member in others:
            member.pause()
        behind.go_on()
        assert "no leader" in refused(cluster.brokers[1])
        assert cluster.brokers[0].process.poll() is None, told(cluster.brokers[0])
        for member in others:
            member.go_on()
        cluster.wait("etcd has a leader", lambda: any(leads(member) for member in cluster.etcd))
        cluster.brokers[1].start_again()
        cluster.wait_until_in_sync("t", 1, 2)
        cluster.wait_until_in_sync("later-4", 1, 2)
        assert read_all(cluster, "t", RECORDS) == list(range(RECORDS))
        produce(cluster, "t", range(RECORDS, RECORDS + 10))
        assert cluster.brokers[0].process.poll() is None


def _right_again(cluster: OttlaCluster, store: ReplaceableStore) -> None:
    store.put_back()
    for broker in cluster.brokers:
        broker.start_again()
    assert read_all(cluster, "t", RECORDS) == list(range(RECORDS))
    produce(cluster, "t", range(RECORDS, RECORDS + 10))
    assert read_all(cluster, "t", RECORDS + 10) == list(range(RECORDS + 10))


def test_a_store_with_every_word_is_joined_again(cluster: OttlaCluster, store: ReplaceableStore) -> None:
    """A copy counts as the same store if nothing was written to the store after the copy was made."""
    create(cluster, "t", [1, 0])
    produce(cluster, "t", range(RECORDS))
    until_worded(store.url)
    for broker in cluster.brokers:
        broker.kill()
    store.copy()
    store.put_copy()
    for broker in cluster.brokers:
        broker.start_again()
    assert read_all(cluster, "t", RECORDS) == list(range(RECORDS))


def test_brokers_that_run_join_their_restored_store(tmp_path: Path) -> None:
    """The store is restored, with a higher generation number, from a backup that was made before the only replica
    moved. The brokers keep running and join the restored store, and the partition gets a leader."""
    cluster = OttlaCluster(tmp_path, 2, 1, broker_session_timeout_ms="3000")
    try:
        etcd = cluster.etcd[0]
        backup = str(tmp_path / "backup")
        create(cluster, "t", [0])
        metadata(f"etcd:{etcd.endpoint}", "backup", backup)
        move(cluster, "t", target=1, source=0)
        produce(cluster, "t", range(RECORDS))
        processes = [broker.process.pid for broker in cluster.brokers]
        etcd.replace_data(None, lambda: restore(etcd, backup))
        _joined(cluster, processes)
    finally:
        cluster.close()


def test_brokers_that_were_held_join_their_restored_store(cluster: OttlaCluster, store: ReplaceableStore) -> None:
    """The store is restored in place, with a higher generation number, while the brokers are paused. Their sessions
    have ended, so that the restore finds no running broker."""
    backup = str(store.copied)
    create(cluster, "t", [0])
    metadata(store.url, "backup", backup)
    move(cluster, "t", target=1, source=0)
    produce(cluster, "t", range(RECORDS))
    processes = [broker.process.pid for broker in cluster.brokers]
    for broker in cluster.brokers:
        broker.pause()
    deadline = time.monotonic() + 60
    while "on the metadata store: stop" in (said := metadata_says(store.url, "restore", "--replace", backup)):
        assert time.monotonic() < deadline, said
        time.sleep(0.5)
    assert "generation 1" in said
    for broker in cluster.brokers:
        broker.go_on()
    _joined(cluster, processes)


def _joined(cluster: OttlaCluster, processes: list[int]) -> None:
    """Asserts that both brokers have joined the restored store: none was restarted (their process ids are `processes`),
    and the partition whose only replica was on broker 1 was copied to broker 0."""

    def copied_back() -> bool:
        try:
            kept = cluster.partition("t", 0)
        except AssertionError:  # the brokers are still joining
            return False
        return kept.leader_id == 0 and list(kept.isr_nodes) == [0]

    cluster.wait("t-0 is copied back", copied_back, 60)
    assert read_all(cluster, "t", RECORDS) == list(range(RECORDS))
    assert [broker.process.pid for broker in cluster.brokers] == processes
    assert all(broker.running for broker in cluster.brokers)
    assert "this process joins the restored cluster anew" in cluster.brokers[0].log_path.read_text()


def restore(etcd: Etcd, backup: str) -> None:
    """Restores a backup into this etcd, at its present address."""
    metadata(f"etcd:{etcd.endpoint}", "restore", backup)


def held(url: str) -> dict[str, int]:
    """Key → revision of its last change, for the store's keys without a lease."""
    found = json.loads(metadata(url, "ls", "-r", "--json"))
    return {each["key"]: each["mod_revision"] for each in found if each["lease"] is None}


def metadata(store: str, *words: str) -> str:
    """The output of `ottla metadata` for a store. Raises AssertionError if it fails."""
    done = _metadata(store, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def metadata_says(store: str, *words: str) -> str:
    """The output and the errors of `ottla metadata` for a store, also if it fails."""
    done = _metadata(store, *words)
    return done.stdout + done.stderr


def _metadata(store: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ottla.cli.main", "metadata", *words, "--store", store]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
