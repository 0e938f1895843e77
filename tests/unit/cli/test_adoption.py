"""What `ottla adopt` takes over of three brokers that Apache Kafka ran, with transactions in every state."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ottla.broker.group.partitioning import partition_for
from ottla.broker.group.records import Committed, OffsetKey, offset_key, offset_value
from ottla.broker.log.adopt import survey
from ottla.broker.log.disk import RealDisk
from ottla.cli import adoption_store
from ottla.cli.adopted_ids import transactional_ids
from ottla.cli.adoption import Adoption, Directory, adoption_of
from ottla.cli.adoption_store import partition_state, write
from ottla.cli.errors import CommandError
from ottla.metadata import keys
from ottla.metadata.cluster import join_cluster
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.features import TRANSACTIONS as TRANSACTION_VERSION
from ottla.metadata.model.cluster import Cluster, ProducerIds
from ottla.metadata.model.partitions import Partition
from ottla.metadata.model.topics import TopicIntent
from ottla.metadata.store import Delete, Entry, Put
from ottla.protocol.batches import Record, assign, build_batch
from ottla.protocol.markers import Marker, marker_batch
from ottla.storage.checkpoints import parse_epochs
from tests.peers.adoption_scene import BROKERS, LONELY, ORDERS, STATES, unpacked
from tests.unit.broker.log.workbench import Workbench, append

TRANSACTIONS = "__transaction_state"


@pytest.fixture
def directories(tmp_path: Path) -> list[Path]:
    return unpacked(tmp_path)


def adopted(directories: list[Path], node_id: int | None = None, **allowed: bool) -> Adoption:
    found = []
    for path in directories:
        content = survey(RealDisk(), str(path))
        broker = content.node_id if node_id is None else node_id
        assert broker is not None
        found.append(Directory(broker, content))
    return adoption_of(found, **{"allow_missing": False, "allow_hanging": False} | allowed)


def refused(directories: list[Path], node_id: int | None = None, **allowed: bool) -> str:
    with pytest.raises(CommandError) as caught:
        adopted(directories, node_id, **allowed)
    return caught.value.line()


def test_all_transactional_ids_are_adopted_in_the_states_that_kafka_left(directories: list[Path]) -> None:
    adoption = adopted(directories)
    states = {name.rstrip("0123456789").rstrip("-"): found.state.label for name, found in adoption.ids.items()}
    assert states == STATES
    assert adoption.brokers == [0, 1, 2]
    assert adoption.hanging() == []
    names = {topic.name: [sorted(topic.partitions[index]) for index in range(topic.count)] for topic in adoption.topics}
    everywhere = [0, 1, 2]
    assert names == {
        "__consumer_offsets": [everywhere],
        TRANSACTIONS: [everywhere] * 3,
        LONELY: [[2]],
        ORDERS: [everywhere],
    }
    assert adoption.greatest_producer_id == max(found.producer_id for found in adoption.ids.values())


def test_a_partition_begins_as_after_a_restore_with_its_replicas_in_turn(directories: list[Path]) -> None:
    adoption = adopted(directories)
    topics = {topic.name: topic for topic in adoption.topics}
    states = [partition_state(adoption, topics[TRANSACTIONS], index) for index in range(3)]
    assert [state.replicas for state in states] == [(0, 1, 2), (1, 2, 0), (2, 0, 1)]
    assert all(state.restored and state.leader == -1 for state in states)
    assert partition_state(adoption, topics[LONELY], 0).replicas == (2,)


def test_the_internal_topics_have_the_settings_with_which_a_broker_makes_them(directories: list[Path]) -> None:
    settings = {topic.name: topic.settings({"min.insync.replicas": "1"}) for topic in adopted(directories).topics}
    assert settings[TRANSACTIONS]["cleanup.policy"] == settings["__consumer_offsets"]["cleanup.policy"] == "compact"
    assert settings[TRANSACTIONS]["min.insync.replicas"] == "2"
    assert settings[TRANSACTIONS]["unclean.leader.election.enable"] == "false"
    assert settings[ORDERS] == {"retention.ms": "-1", "retention.bytes": "-1", "min.insync.replicas": "1"}


def test_coordinators_begin_above_the_epoch_of_every_marker(directories: list[Path]) -> None:
    """A replica's checkpoint may lack the epochs in which a coordinator wrote markers and no record."""
    adoption = adopted(directories)
    topics = {topic.name: topic for topic in adoption.topics}
    checkpoint = directories[0] / f"{TRANSACTIONS}-0" / "leader-epoch-checkpoint"
    assert max(entry.epoch for entry in parse_epochs(checkpoint.read_bytes())) < 40
    log = Workbench(directories[2] / f"{ORDERS}-0").log()
    append(log, marker_batch(12345, 0, Marker(True, 40, 1000)))
    log.close()
    adoption = adopted(directories)
    assert [adoption.first_epoch(topics[TRANSACTIONS], index) for index in range(3)] == [40] * 3
    assert adoption.first_epoch(topics[ORDERS], 0) < 40
    assert adoption.greatest_producer_id == 12345


def without_transactional_ids(directories: list[Path]) -> None:
    for path in directories:
        for partition in path.glob(f"{TRANSACTIONS}-*"):
            shutil.rmtree(partition)


def without_the_last_partition(directories: list[Path]) -> None:
    for path in directories:
        shutil.rmtree(path / f"{TRANSACTIONS}-2")


def of_another_cluster(directories: list[Path]) -> None:
    properties = directories[1] / "meta.properties"
    lines = [line for line in properties.read_text().splitlines() if not line.startswith("cluster.id")]
    properties.write_text("\n".join([*lines, "cluster.id=another", ""]))


def with_an_unknown_format(directories: list[Path]) -> None:
    for path in directories:
        log = sorted((path / f"{TRANSACTIONS}-0").glob("*.log"))[-1]
        batch = bytearray(build_batch([Record(0, 0, b"\0\0\0\1x", b"\0\7")]))
        assign(batch, 0, 1000, 0)
        log.write_bytes(log.read_bytes() + batch)


def created_again(directories: list[Path]) -> None:
    metadata = directories[0] / f"{ORDERS}-0" / "partition.metadata"
    metadata.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without_transactional_ids, f"(from offset 0), {LONELY}-0 (from offset 0), {ORDERS}-0 (from offset"),
        (without_the_last_partition, f"if {TRANSACTIONS} has 2 partitions: the last partition"),
        (of_another_cluster, "the directories belong to several clusters (4L6g3nShT-eMCtK--X86sw, another)"),
        (with_an_unknown_format, "offset 1000: the record has a format that isn't known"),
        (created_again, f"topic {ORDERS} has several ids"),
    ],
)
def test_what_would_lose_state_is_refused(
    directories: list[Path], change: Callable[[list[Path]], None], words: str
) -> None:
    change(directories)
    assert words in refused(directories)


def test_hanging_transactions_are_adopted_if_somebody_wants_them(directories: list[Path]) -> None:
    without_transactional_ids(directories)
    adoption = adopted(directories, allow_hanging=True)
    assert adoption.ids == {}
    assert [words.split(" ")[0] for words in adoption.hanging()] == [
        "__consumer_offsets-0",
        f"{LONELY}-0",
        f"{ORDERS}-0",
    ]


def test_one_broker_cannot_have_two_replicas_of_a_partition(directories: list[Path]) -> None:
    assert "are the same partition" in refused(directories, node_id=0)
    assert adopted(directories[2:], node_id=7).brokers == [7]


def test_the_directories_of_one_broker_are_taken_together(directories: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(directories[0] / "meta.properties", other)
    (directories[0] / f"{ORDERS}-0").rename(other / f"{ORDERS}-0")
    adoption = adopted([directories[0], other])
    assert adoption.brokers == [0]
    assert {topic.name for topic in adoption.topics} == {"__consumer_offsets", TRANSACTIONS, ORDERS}


def test_a_replica_that_lacks_markers_makes_no_transaction_hang(directories: list[Path]) -> None:
    """The most complete replica counts: the killed broker's log ends before the state of two transactions."""
    behind = transactional_ids(str(directories[BROKERS - 1] / f"{TRANSACTIONS}-0"))
    ahead = transactional_ids(str(directories[0] / f"{TRANSACTIONS}-0"))
    assert set(behind) <= set(ahead)
    assert adopted(directories).hanging() == []


OFFSETS = "__consumer_offsets"


def offsets_topic(folder: Path, count: int, groups: list[str], lost: set[int], key: bytes | None = None) -> Path:
    """The log directory of a broker of Kafka with `__consumer_offsets` of `count` partitions, except for the partitions
    in `lost`. Each group has a committed offset. `key` is that of another record in partition 0."""
    data = folder / "data"
    data.mkdir()
    (data / "meta.properties").write_text("version=1\ncluster.id=4L6g3nShT-eMCtK--X86sw\nnode.id=4\n")
    for index in set(range(count)) - lost:
        directory = data / f"{OFFSETS}-{index}"
        directory.mkdir()
        placed = [group for group in groups if partition_for(group, count) == index]
        keys = [offset_key(OffsetKey(group, ORDERS, 0)) for group in placed]
        if key is not None and not index:
            keys.append(key)
        batches = [bytearray(build_batch([Record(0, 1000, each, offset_value(Committed(2)))])) for each in keys]
        for offset, batch in enumerate(batches):
            assign(batch, 0, offset, 0)
        (directory / "00000000000000000000.log").write_bytes(b"".join(batches))
        (directory / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    return data


MANY = [f"group-{number}" for number in range(100)]


@pytest.mark.parametrize(
    ("count", "groups", "lost", "words"),
    [
        (50, MANY, {48, 49}, "the last partitions are missing, probably 48 to 49. Name all log directories"),
        (50, MANY[:3], {48, 49}, "the last partitions are missing, probably 48 to 49. Name all log directories"),
        (5, MANY, {4}, "the last partition is missing, probably 4. Name all log directories"),
        (50, MANY, {7, 8}, f"topic '{OFFSETS}' lacks partitions 7, 8"),
    ],
)
def test_offsets_that_would_become_unreachable_are_not_adopted(
    tmp_path: Path, count: int, groups: list[str], lost: set[int], words: str
) -> None:
    """A group's partition depends on the partition count: with another count its committed offsets aren't found."""
    assert words in refused([offsets_topic(tmp_path, count, groups, lost)])


@pytest.mark.parametrize(("count", "groups"), [(50, MANY), (5, MANY), (5, MANY[:1]), (1, MANY), (5, []), (48, [])])
def test_a_topic_of_offsets_with_another_partition_count_than_the_default_is_adopted(
    tmp_path: Path, count: int, groups: list[str]
) -> None:
    (topic,) = adopted([offsets_topic(tmp_path, count, groups, set())]).topics
    assert (topic.count, topic.missing) == (count, [])


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (b"\0\3\0\5group", ""),  # of a group of the newer protocol (KIP-848)
        (b"\0\1\0\5g", "a committed offset or a group can't be read: "),
    ],
)
def test_a_key_in_the_topic_of_offsets_that_cannot_be_read_is_told(tmp_path: Path, key: bytes, words: str) -> None:
    data = offsets_topic(tmp_path, 5, MANY, set(), key)
    if words:
        assert words in refused([data])
    else:
        assert adopted([data]).topics[0].count == 5


async def content(path: Path) -> list[Entry]:
    store = await EmbeddedStore.open(path)
    try:
        return list((await store.read()).entries)
    finally:
        await store.close()


def test_an_adoption_that_is_repeated_changes_nothing_in_the_store(directories: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    adoption = adopted(directories)
    assert write(adoption, path, {}) == 2, "a new cluster has the highest level of transaction.version"
    first = asyncio.run(content(path))
    found = {entry.key: entry for entry in first}
    assert Cluster.decode(found[keys.cluster.key]).awaited == (0, 1, 2)
    assert ProducerIds.decode(found[keys.producer_ids.key]).next_id == adoption.greatest_producer_id + (1 << 40)
    assert write(adopted(directories), path, {}) == 2
    assert asyncio.run(content(path)) == first
    properties = [(each / "meta.properties").read_text() for each in directories]
    assert [f"node.id={number}" in text for number, text in enumerate(properties)] == [True] * BROKERS


def replicas_in(path: Path) -> list[tuple[int, ...]]:
    """The replicas of all partitions, by the states and by the intents, which must be alike."""
    entries = asyncio.run(content(path))
    states = [Partition.decode(entry) for entry in entries if entry.key.startswith(keys.partition.prefix)]
    intents = [TopicIntent.decode(entry) for entry in entries if entry.key.startswith(keys.topic.prefix)]
    found = sorted(tuple(sorted(state.replicas)) for state in states)
    assert found == sorted(tuple(sorted(each)) for intent in intents for each in intent.assignments)
    return found


def test_an_adoption_that_is_repeated_with_more_directories_has_the_replicas_of_all_of_them(
    directories: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run names two of three brokers, and fails before it has claimed a directory."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "metadata.sqlite"
    with monkeypatch.context() as patched:
        patched.setattr(adoption_store, "claim", full)
        with pytest.raises(CommandError, match="no space left on device"):
            write(adopted(directories[:2]), path, {})
    assert replicas_in(path) == [(0, 1)] * 5
    write(adopted(directories), path, {})
    assert replicas_in(path) == [(0, 1, 2)] * 5 + [(2,)]


def test_an_adoption_that_would_take_replicas_away_is_refused(directories: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    write(adopted(directories[:2]), path, {})
    before = asyncio.run(content(path))
    with pytest.raises(CommandError, match="is adopted already, with replicas on brokers 0, 1, and the directories"):
        write(adopted(directories[1:]), path, {})
    assert asyncio.run(content(path)) == before
    assert not (directories[2] / "meta.properties.kafka").exists()


def test_an_adopted_topic_that_has_a_leader_is_not_written_again(directories: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    write(adopted(directories[:2]), path, {})

    async def elected() -> None:
        store = await EmbeddedStore.open(path)
        [entry, *_] = (await store.read(keys.partition.prefix)).entries
        await store.transact([], [Put(entry.key, replace(Partition.decode(entry), leader=0).encode())])
        await store.close()

    asyncio.run(elected())
    before = asyncio.run(content(path))
    with pytest.raises(CommandError, match="is adopted already"):
        write(adopted(directories), path, {})
    assert asyncio.run(content(path)) == before


def test_a_cluster_of_an_earlier_version_keeps_the_level_at_which_there_are_no_transactions(
    directories: list[Path], tmp_path: Path
) -> None:
    path = tmp_path / "metadata.sqlite"

    async def made() -> None:
        store = await EmbeddedStore.open(path)
        await join_cluster(store, None, "4L6g3nShT-eMCtK--X86sw")
        await store.transact([], [Delete(keys.feature(TRANSACTION_VERSION))])
        await store.close()

    asyncio.run(made())
    assert write(adopted(directories), path, {}) == 0
