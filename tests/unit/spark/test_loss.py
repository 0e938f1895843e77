"""Some failures count as lost data, others don't. The brokers are scripted: each test sets their answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

from ottla.net.client import Client, Unreachable
from ottla.net.existence import TopicGone, Wanted
from ottla.net.names import LATEST, TopicPartition
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.spark import reading
from ottla.spark.options import OptionError
from ottla.spark.planning import DataLoss
from ottla.spark.source import DefaultSource
from ottla.uuids import uuid_text
from tests.peers.scripted_cluster import FETCH, LIST_OFFSETS, METADATA, ScriptedCluster, Topic

SCHEMA = StructType([StructField("offset", LongType())])
ALL = ReadAllAvailable()


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(2, t=Topic([100])) as made:
        yield made
    for client in reading._clients.values():
        client.close()
    reading._clients.clear()


def options(cluster: ScriptedCluster, **more: Any) -> dict[str, str]:
    given = {"subscribe": "t", "fetchOffset.retryIntervalMs": "20", **more}
    return {"kafka.bootstrap.servers": cluster.bootstrap} | {name: str(value).lower() for name, value in given.items()}


def batch(cluster: ScriptedCluster, **more: Any) -> list[int]:
    reader = DefaultSource(options(cluster, **more)).reader(SCHEMA)
    return rows(reader, reader.partitions())


def stream(cluster: ScriptedCluster, **more: Any) -> Any:
    return DefaultSource(options(cluster, startingOffsets="earliest", **more)).streamReader(SCHEMA)


def rows(reader: Any, tasks: Any) -> list[int]:
    return [at for task in tasks for found in reader.read(task) for at in found.column("offset").to_pylist()]


@pytest.mark.parametrize("loss", [True, False])
@pytest.mark.parametrize("api_key", [METADATA, LIST_OFFSETS, FETCH])
@pytest.mark.parametrize("code", [ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id])
def test_a_broker_that_does_not_know_a_topic_for_a_moment_loses_no_rows(
    cluster: ScriptedCluster, api_key: int, code: ErrorCode, loss: bool
) -> None:
    cluster.times(1, code, api_key)
    assert batch(cluster, failOnDataLoss=loss) == list(range(100))


def test_a_topic_that_one_broker_knows_already_exists(cluster: ScriptedCluster) -> None:
    """Right after a topic's creation, some brokers may not know it yet. Here broker 0 doesn't."""
    del cluster.views[0]["t"]
    found = Client(cluster.bootstrap).look_up({"t": Wanted()}).topics
    assert list(found) == ["t"]
    reader = DefaultSource(options(cluster, **{"fetchOffset.numRetries": 1})).streamReader(SCHEMA)
    cluster.views[0]["t"] = cluster.views[1]["t"]
    assert reader.initialOffset()["t"] == {"0": 100}


def test_a_topic_that_nobody_knows_for_a_while_is_asked_for_again(cluster: ScriptedCluster) -> None:
    cluster.times(5, ErrorCode.unknown_topic_or_partition, METADATA)
    assert batch(cluster) == list(range(100))


def test_a_topic_that_nobody_knows_is_an_error_after_the_retries(cluster: ScriptedCluster) -> None:
    with pytest.raises(OptionError, match="topic 'x' does not exist at 127"):
        batch(cluster, subscribe="x", **{"fetchOffset.numRetries": 2})
    assert cluster.asked.count((0, METADATA)) == cluster.asked.count((1, METADATA)) == 3


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_is_gone_is_lost_only_when_brokers_agree(cluster: ScriptedCluster, again: bool) -> None:
    """The topic is deleted, or deleted and created anew, after the read was planned."""
    for loss in (False, True):
        cluster.everywhere(t=Topic([100]))
        reader = DefaultSource(options(cluster, failOnDataLoss=loss)).reader(SCHEMA)
        planned = reader.partitions()
        cluster.everywhere(t=Topic([300]) if again else None)
        if not loss:
            assert rows(reader, planned) == []
            continue
        what = "'t' was deleted and created anew" if again else "'t' is gone"
        with pytest.raises(DataLoss, match=f"offsets 0 to 100 of t-0 can't be read: topic {what}"):
            rows(reader, planned)


def test_a_broker_that_never_learns_of_a_topic_is_an_error_and_no_loss(cluster: ScriptedCluster) -> None:
    more = {"kafka.default.api.timeout.ms": 500, "failOnDataLoss": False}
    cluster.fault = lambda broker, api_key, topic: ErrorCode.unknown_topic_id if api_key == FETCH else ErrorCode.none
    with pytest.raises(Unreachable, match=r"t-0 exists, and 127.0.0.1:.* answered unknown_topic_id"):
        batch(cluster, **more)


@pytest.mark.parametrize("code", [ErrorCode.topic_authorization_failed, ErrorCode.corrupt_message])
@pytest.mark.parametrize("api_key", [LIST_OFFSETS, FETCH])
def test_what_a_broker_refuses_is_an_error_and_no_loss(cluster: ScriptedCluster, api_key: int, code: ErrorCode) -> None:
    cluster.times(1, code, api_key)
    with pytest.raises(KafkaError, match=code.name):
        batch(cluster, failOnDataLoss=False)


def test_an_offset_out_of_range_that_the_log_holds_is_read_again(cluster: ScriptedCluster) -> None:
    cluster.times(2, ErrorCode.offset_out_of_range, FETCH)
    assert batch(cluster, failOnDataLoss=False) == list(range(100))


def test_an_offset_that_stays_out_of_range_although_the_log_holds_it_is_an_error(cluster: ScriptedCluster) -> None:
    cluster.times(1000, ErrorCode.offset_out_of_range, FETCH)
    with pytest.raises(KafkaError, match="offset_out_of_range: t-0 has no offset 0"):
        batch(cluster, failOnDataLoss=False)


def test_a_log_that_starts_later_has_lost_rows(cluster: ScriptedCluster) -> None:
    reader = DefaultSource(options(cluster, failOnDataLoss=False)).reader(SCHEMA)
    planned = reader.partitions()
    cluster.everywhere(t=Topic([100], [40], cluster.views[0]["t"].topic_id))
    assert rows(reader, planned) == list(range(40, 100))
    reader = DefaultSource(options(cluster)).reader(SCHEMA)
    with pytest.raises(DataLoss, match="t-0 has offsets 40 to 100, but 0 was to be read"):
        rows(reader, planned)


def test_a_gone_partition_in_list_offsets_is_no_loss(cluster: ScriptedCluster) -> None:
    with Client(cluster.bootstrap, unknown_interval_ms=10) as client:
        assert client.list_offsets({TopicPartition("t", 0): LATEST})[TopicPartition("t", 0)].offset == 100
        with pytest.raises(TopicGone, match="topic 't' has 1 partitions, no partition 1"):
            client.list_offsets({TopicPartition("t", 1): LATEST})
        with pytest.raises(TopicGone, match="topic 'x' at 127"):
            client.list_offsets({TopicPartition("x", 0): LATEST})


def test_a_topic_created_anew_under_a_checkpoint_is_not_skipped_into(cluster: ScriptedCluster) -> None:
    start = stream(cluster).initialOffset()
    end = stream(cluster).latestOffset(start, ALL)
    cluster.everywhere(t=Topic([250]))
    with pytest.raises(DataLoss, match=r"topic 't' was deleted and created anew \(its id was \S{22} and is \S{22}\)"):
        stream(cluster).latestOffset(end, ALL)
    reader = stream(cluster, failOnDataLoss=False)
    again = reader.latestOffset(end, ALL)
    assert rows(reader, reader.partitions(end, again)) == list(range(250))
    assert reader.latestOffset(again, ALL) == again


def test_a_topic_created_anew_with_fewer_records_is_read(cluster: ScriptedCluster) -> None:
    """Before the fix, all 40 records were skipped, because the new end was before the checkpoint's offset."""
    end = stream(cluster).latestOffset(stream(cluster).initialOffset(), ALL)
    cluster.everywhere(t=Topic([40]))
    reader = stream(cluster, failOnDataLoss=False)
    limited = reader.latestOffset(end, ReadMaxRows(15))
    assert rows(reader, reader.partitions(end, limited)) == list(range(15))
    again = reader.latestOffset(limited, ALL)
    assert rows(reader, reader.partitions(limited, again)) == list(range(15, 40))


def test_a_planned_batch_of_a_topic_created_anew_is_reported_when_it_is_run_again(cluster: ScriptedCluster) -> None:
    """The micro-batch is planned, then the topic is deleted and created anew. Spark restarts, and runs the same
    micro-batch again.
    """
    start = stream(cluster).initialOffset()
    end = stream(cluster).latestOffset(start, ALL)
    cluster.everywhere(t=Topic([300]))
    reader = stream(cluster)
    with pytest.raises(DataLoss, match="deleted and created anew"):
        rows(reader, reader.partitions(start, end))


@pytest.mark.parametrize("subscription", [{"subscribe": "t"}, {"subscribe": "", "subscribePattern": "t"}])
def test_a_broker_that_lags_behind_a_new_topic_is_no_loss(cluster: ScriptedCluster, subscription: Any) -> None:
    """The metadata of broker 1 still has the old topic, or no topic, or fewer partitions than the new topic."""
    given = {name: value for name, value in subscription.items() if value}
    old = cluster.views[0]["t"]
    cluster.views[0]["t"] = Topic([30, 10])
    ends = []
    for stale in (old, None, Topic([30], topic_id=cluster.views[0]["t"].topic_id)):
        cluster.views[1].pop("t", None)
        if stale is not None:
            cluster.views[1]["t"] = stale
        reversed_bootstrap = ",".join(reversed(cluster.bootstrap.split(",")))
        known = {"t": {"0": 10, "1": 0}, **ids(cluster.views[0]["t"])}
        base = {**options(cluster), "kafka.bootstrap.servers": reversed_bootstrap, "startingOffsets": "earliest"}
        del base["subscribe"]
        ends.append(DefaultSource({**base, **given}).streamReader(SCHEMA).latestOffset(known, ALL))
    assert ends == [{"t": {"0": 30, "1": 10}, **ids(cluster.views[0]["t"])}] * 3


def ids(topic: Topic) -> dict[str, dict[str, int]]:
    return {f"t:{uuid_text(topic.topic_id)}": {}}


def test_a_new_partition_that_one_broker_has_not_heard_of_is_no_loss(cluster: ScriptedCluster) -> None:
    """The end of the micro-batch comes from a broker that knows the new partition 2. Broker 1 doesn't know it yet, and
    is the first broker that the planning of the tasks asks.
    """
    topic_id = cluster.views[0]["t"].topic_id
    cluster.everywhere(t=Topic([30, 10, 20], topic_id=topic_id))
    cluster.views[1]["t"] = Topic([30, 10], topic_id=topic_id)
    reversed_bootstrap = ",".join(reversed(cluster.bootstrap.split(",")))
    given = {**options(cluster), "kafka.bootstrap.servers": reversed_bootstrap}
    reader = DefaultSource(given).streamReader(SCHEMA)
    tasks = reader.partitions({"t": {"0": 30, "1": 10}}, {"t": {"0": 30, "1": 10, "2": 20}})
    assert rows(reader, tasks) == list(range(20))


def test_a_checkpoint_without_ids_goes_on(cluster: ScriptedCluster) -> None:
    reader = stream(cluster)
    end = reader.latestOffset({"t": {"0": 60}}, ALL)
    assert end == {"t": {"0": 100}, **ids(cluster.views[0]["t"])}
    assert rows(reader, reader.partitions({"t": {"0": 60}}, end)) == list(range(60, 100))


def test_an_end_before_the_checkpoint_is_asked_again_before_it_is_a_loss(cluster: ScriptedCluster) -> None:
    topic = cluster.views[0]["t"]
    begin = {"t": {"0": 100}, **ids(topic)}
    cluster.everywhere(t=Topic([90], topic_id=topic.topic_id))
    answers = iter([90, 90])

    def fault(broker: int, api_key: int, name: str) -> ErrorCode:
        if api_key == LIST_OFFSETS and next(answers, None) is None:
            cluster.everywhere(t=topic)
        return ErrorCode.none

    cluster.fault = fault
    assert stream(cluster).latestOffset(begin, ALL) == begin
