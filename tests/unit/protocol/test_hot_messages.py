"""The hand-written codecs of Produce and Fetch are compared with slow implementations: kio's reader and the generic
writer.
"""

from __future__ import annotations

import contextlib
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol import fetch, fetch_request, fetch_response, produce
from ottla.protocol.current_leader import FETCH_VERSION, Node, fetch_leader_tags, node_tags, produce_leader_tags
from ottla.protocol.errors import ProtocolError
from ottla.protocol.frames import response_body
from ottla.protocol.messages import milliseconds, read_request, read_response, write_request

PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 19)
names = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=200)
topic_ids = st.uuids()
records = st.none() | st.binary(max_size=300)
partition_lists = st.lists(st.tuples(st.integers(0, 2**31 - 1), records), max_size=4)


def produce_body(version, transactional_id, acks, timeout, topics):
    return write_request(
        0,
        version,
        {
            "transactional_id": transactional_id,
            "acks": acks,
            "timeout": timeout,
            "topic_data": [
                {
                    "name": name,
                    "topic_id": topic_id,
                    "partition_data": [{"index": index, "records": data} for index, data in partitions],
                }
                for name, topic_id, partitions in topics
            ],
        },
    )


@given(
    st.sampled_from(PRODUCE_VERSIONS),
    st.none() | names,
    st.integers(-(2**15), 2**15 - 1),
    st.integers(0, 2**31 - 1),
    st.lists(st.tuples(names, topic_ids, partition_lists), max_size=3),
)
def test_produce_request_reads_as_kio_reads_it(version, transactional_id, acks, timeout, topics):
    body = produce_body(version, transactional_id, acks, timeout, topics)
    ours = produce.read_produce_request(version, bytearray(body), 0, len(body))
    theirs = read_request(0, version, body)
    assert (ours.transactional_id, ours.acks, ours.timeout) == (
        theirs.transactional_id,
        theirs.acks,
        milliseconds(theirs.timeout),
    )
    found = [
        (topic, [(index, None if start < 0 else body[start:end]) for index, start, end in partitions])
        for topic, partitions in ours.topics
    ]
    expected = [
        (
            (topic.topic_id or UUID(int=0)).bytes if version >= produce.TOPIC_IDS else topic.name,
            [(partition.index, partition.records) for partition in topic.partition_data],
        )
        for topic in theirs.topic_data
    ]
    assert found == expected


numbers = st.integers(-(2**31), 2**31 - 1)
longs = st.integers(-(2**63), 2**63 - 1)
asked = st.lists(st.tuples(numbers, longs, numbers, numbers, numbers, longs), max_size=3)


@given(
    st.sampled_from(FETCH_VERSIONS),
    st.tuples(numbers, st.integers(0, 2**31 - 1), numbers, numbers, st.integers(-128, 127), numbers, numbers),
    st.lists(st.tuples(names, topic_ids, asked), max_size=3),
    st.lists(st.tuples(names, topic_ids, st.lists(numbers, max_size=3)), max_size=2),
    names,
)
def test_fetch_request_reads_as_kio_reads_it(version, fixed, topics, forgotten, rack_id):
    replica_id, max_wait, min_bytes, max_bytes, isolation_level, session_id, session_epoch = fixed
    fields = (
        "partition",
        "fetch_offset",
        "partition_max_bytes",
        "current_leader_epoch",
        "last_fetched_epoch",
        "log_start_offset",
    )
    body = write_request(
        1,
        version,
        {
            "cluster_id": rack_id,
            "replica_id": replica_id,
            "replica_state": {"replica_id": replica_id, "replica_epoch": 5},
            "max_wait": max_wait,
            "min_bytes": min_bytes,
            "max_bytes": max_bytes,
            "isolation_level": isolation_level,
            "session_id": session_id,
            "session_epoch": session_epoch,
            "rack_id": rack_id,
            "topics": [
                {
                    "topic": name,
                    "topic_id": topic_id,
                    "partitions": [dict(zip(fields, partition, strict=True)) for partition in partitions],
                }
                for name, topic_id, partitions in topics
            ],
            "forgotten_topics_data": [
                {"topic": name, "topic_id": topic_id, "partitions": indexes} for name, topic_id, indexes in forgotten
            ],
        },
    )
    ours = fetch_request.read_fetch_request(version, bytearray(body), 0, len(body))
    theirs = read_request(1, version, body)

    def key(topic):
        return (topic.topic_id or UUID(int=0)).bytes if version >= fetch.TOPIC_IDS else topic.topic

    state = theirs.replica_state
    replica_id, replica_epoch = (state.replica_id, state.replica_epoch) if version >= 15 else (theirs.replica_id, -1)
    assert ours == (
        replica_id,
        milliseconds(theirs.max_wait),
        theirs.min_bytes,
        theirs.max_bytes,
        theirs.isolation_level,
        theirs.session_id,
        theirs.session_epoch,
        [
            (key(topic), [tuple(getattr(partition, field) for field in fields) for partition in topic.partitions])
            for topic in theirs.topics
        ],
        [(key(topic), list(topic.partitions)) for topic in theirs.forgotten_topics_data],
        theirs.rack_id,
        replica_epoch,
    )
    for end in range(len(body)):
        with pytest.raises(ProtocolError):
            fetch_request.read_fetch_request(version, bytearray(body[:end]), 0, end)


@given(st.sampled_from(FETCH_VERSIONS), st.binary(max_size=120))
def test_any_bytes_are_a_fetch_request_or_a_protocol_error(version, body):
    try:
        fetch_request.read_fetch_request(version, bytearray(body + b"x" * 50), 0, len(body))
    except ProtocolError:
        return


@given(st.sampled_from(PRODUCE_VERSIONS), st.binary(max_size=120))
def test_any_bytes_are_a_request_or_a_protocol_error(version, body):
    try:
        produce.read_produce_request(version, bytearray(body), 0, len(body))
    except ProtocolError:
        return


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_a_request_cut_anywhere_is_refused(version):
    body = produce_body(version, "t", -1, 1000, [("topic", UUID(int=7), [(0, b"x" * 70), (1, None)])])
    for cut in range(len(body)):
        with pytest.raises(ProtocolError):
            produce.read_produce_request(version, bytearray(body[:cut]), 0, cut)


@given(
    st.sampled_from(PRODUCE_VERSIONS),
    st.integers(-(2**31), 2**31 - 1),
    st.lists(
        st.tuples(
            names,
            topic_ids,
            st.lists(
                st.tuples(
                    st.integers(0, 2**31 - 1),
                    st.sampled_from([0, 2, 87]),
                    st.integers(-1, 2**62),
                    st.integers(-1, 2**40),
                    st.integers(-1, 2**62),
                    st.none() | names,
                    st.lists(st.tuples(st.integers(0, 9), st.none() | names), max_size=2),
                ),
                max_size=3,
            ),
        ),
        max_size=3,
    ),
)
def test_produce_answers_are_read_back(version, correlation_id, topics):
    answers = [
        (topic_id.bytes if version >= produce.TOPIC_IDS else name, [produce.PartitionAnswer(*p) for p in partitions])
        for name, topic_id, partitions in topics
    ]
    frame = bytes(produce.write_produce_answer(version, correlation_id, answers))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    read_correlation, start = response_body(0, version, frame[4:])
    assert read_correlation == correlation_id
    response = read_response(0, version, frame[4:], start)
    assert len(response.responses) == len(topics)
    for answer, topic in zip(answers, response.responses, strict=True):
        for sent, read in zip(answer[1], topic.partition_responses, strict=True):
            assert (read.index, read.error_code, read.base_offset) == (sent.index, sent.error, sent.base_offset)
            if version >= 8 and sent.error:
                assert read.error_message == sent.message
                assert [(e.batch_index, e.batch_index_error_message) for e in read.record_errors] == [
                    *sent.record_errors
                ]


@given(
    st.sampled_from(FETCH_VERSIONS),
    st.lists(
        st.tuples(
            names,
            topic_ids,
            st.lists(
                st.tuples(
                    st.integers(0, 2**31 - 1),
                    st.sampled_from([0, 1, 3]),
                    st.integers(-1, 2**62),
                    st.binary(max_size=200),
                    st.none() | st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99)), max_size=2),
                ),
                max_size=3,
            ),
        ),
        max_size=3,
    ),
)
def test_fetch_answers_are_read_back(version, topics):
    answers = [
        (
            topic_id.bytes if version >= fetch.TOPIC_IDS else name,
            [
                fetch.PartitionAnswer(index, error, offset, offset, 0, [data], len(data), aborted)
                for index, error, offset, data, aborted in partitions
            ],
        )
        for name, topic_id, partitions in topics
    ]
    frame = b"".join(bytes(part) for part in fetch.write_fetch_answer(version, 77, 0, 5, answers))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    correlation_id, start = response_body(1, version, frame[4:])
    assert correlation_id == 77
    response = read_response(1, version, frame[4:], start)
    if version >= 7:
        assert response.session_id == 5
    for answer, topic in zip(answers, response.responses, strict=True):
        for sent, read in zip(answer[1], topic.partitions, strict=True):
            assert (read.partition_index, read.error_code, read.high_watermark) == sent[:3]
            assert (read.records or b"") == (b"".join(sent.records) if sent.size else b"")
            if sent.aborted is not None:
                assert [(a.producer_id, a.first_offset) for a in read.aborted_transactions] == sent.aborted


@pytest.mark.parametrize("version", range(12, 19))
def test_fetch_tags_are_read_back(version):
    diverging = fetch.PartitionAnswer(0, 0, tags=fetch.diverging_epoch_tags(3, 17))
    moved = fetch.PartitionAnswer(1, 6, tags=fetch_leader_tags(2, 9))
    frame = b"".join(map(bytes, fetch.write_fetch_answer(version, 1, 0, 0, [(b"i" * 16, [diverging, moved])])))
    if version < fetch.TOPIC_IDS:
        frame = b"".join(map(bytes, fetch.write_fetch_answer(version, 1, 0, 0, [("t", [diverging, moved])])))
    response = read_response(1, version, frame[4:], response_body(1, version, frame[4:])[1])
    first, second = response.responses[0].partitions
    assert (first.diverging_epoch.epoch, first.diverging_epoch.end_offset) == (3, 17)
    assert (second.current_leader.leader_id, second.current_leader.leader_epoch) == (2, 9)


NODES = [Node(2, "elsewhere", 9092, None), Node(5, "h" * 200, 65535, "rack é")]


@pytest.mark.parametrize("version", range(FETCH_VERSION, 19))
@pytest.mark.parametrize("nodes", [[], NODES])
def test_fetch_names_the_leaders_nodes(version, nodes):
    answers = [(b"i" * 16, [fetch.PartitionAnswer(1, 6, tags=fetch_leader_tags(2, 9))])]
    parts = fetch.write_fetch_answer(version, 1, 0, 0, answers, tags=node_tags(nodes))
    frame = b"".join(map(bytes, parts))
    response = read_response(1, version, frame[4:], response_body(1, version, frame[4:])[1])
    assert [(node.node_id, node.host, node.port, node.rack) for node in response.node_endpoints] == nodes


@pytest.mark.parametrize("version", range(10, 14))
@pytest.mark.parametrize("nodes", [[], NODES])
def test_produce_names_the_leader_and_its_node(version, nodes):
    answer = produce.PartitionAnswer(3, 6, tags=produce_leader_tags(2, 9))
    topic = b"i" * 16 if version >= produce.TOPIC_IDS else "t"
    frame = bytes(produce.write_produce_answer(version, 7, [(topic, [answer])], node_tags(nodes)))
    response = read_response(0, version, frame[4:], response_body(0, version, frame[4:])[1])
    [partition] = response.responses[0].partition_responses
    assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (2, 9)
    assert [(node.node_id, node.host, node.port, node.rack) for node in response.node_endpoints] == nodes


fetched = st.lists(
    st.tuples(
        st.text(max_size=20),
        st.lists(
            st.tuples(
                numbers, st.sampled_from([0, 1, 3]), longs, records, st.none() | st.lists(st.tuples(longs, longs))
            ),
            max_size=3,
        ),
    ),
    max_size=3,
)


def fetch_answer(version, error, topics):
    answers = [
        (
            name,
            [
                fetch.PartitionAnswer(index, code, high, 0, 0, [data] if data else [], len(data or b""), aborted)
                for index, code, high, data, aborted in partitions
            ],
        )
        for name, partitions in topics
    ]
    return b"".join(fetch.write_fetch_answer(version, 5, error, 0, answers))[4:]


@given(st.sampled_from(range(4, 14)), st.sampled_from([0, 71]), fetched)
def test_fetch_response_reads_as_kio_reads_it(version, error, topics):
    if version >= fetch.TOPIC_IDS:
        topics = [(bytes([1 + index]) * 16, partitions) for index, (_, partitions) in enumerate(topics)]
    frame = fetch_answer(version, error, topics)
    _, start = response_body(1, version, frame)
    theirs = read_response(1, version, frame, start)
    assert fetch_response.read_fetch_response(version, memoryview(frame), start) == (
        theirs.error_code if version >= 7 else 0,
        [
            (
                topic.topic_id if version >= fetch.TOPIC_IDS else topic.topic,
                each.partition_index,
                each.error_code,
                each.high_watermark,
                tuple((gone.producer_id, gone.first_offset) for gone in each.aborted_transactions or ()),
                each.records or b"",
            )
            for topic in theirs.responses
            for each in topic.partitions
        ],
    )


@given(st.sampled_from(range(4, 14)), st.binary(max_size=120))
def test_any_bytes_are_a_fetch_response_or_a_protocol_error(version, body):
    with contextlib.suppress(ProtocolError):
        fetch_response.read_fetch_response(version, memoryview(body), 0)


@pytest.mark.parametrize("version", range(4, 14))
def test_a_fetch_response_cut_anywhere_is_refused(version):
    topic = b"i" * 16 if version >= fetch.TOPIC_IDS else "topic"
    frame = fetch_answer(version, 0, [(topic, [(0, 0, 9, b"x" * 70, [(1, 2)]), (1, 0, 0, None, None)])])
    _, start = response_body(1, version, frame)
    for cut in range(start, len(frame)):
        with pytest.raises(ProtocolError):
            fetch_response.read_fetch_response(version, memoryview(frame[:cut]), start)
