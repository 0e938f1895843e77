"""Options of reads and writes: accepted options, and the messages by which others are refused."""

from __future__ import annotations

import ast
import pickle
from dataclasses import fields

import pytest

from ottla.net.names import READ_COMMITTED, TopicPartition
from ottla.protocol.codecs import Codec
from ottla.spark.options import (
    KNOWN,
    LATEST,
    ExactlyOnce,
    Offsets,
    OptionError,
    ReadOptions,
    Timestamps,
    WriteOptions,
    read_options,
    wants_headers,
    write_options,
)
from tests.peers.tools import ROOT

BASE = {"kafka.bootstrap.servers": "localhost:9092"}


def read(streaming: bool = False, **options: str):
    return read_options(
        {**BASE, "subscribe": "t", **{k.replace("__", "."): v for k, v in options.items()}}, streaming=streaming
    )


def test_defaults() -> None:
    batch, stream = read(), read(streaming=True)
    assert batch.starting == Offsets(-2)
    assert batch.ending == Offsets(-1)
    assert stream.starting == Offsets(LATEST)
    assert batch.fail_on_data_loss
    assert batch.max_trigger_delay_ms == 15 * 60_000
    assert batch.warnings == ()


def test_the_page_names_every_option() -> None:
    page = (ROOT / "docs/spark.md").read_text()
    assert [name for name in KNOWN if f"`{name}`" not in page] == []


@pytest.mark.parametrize("options", [ReadOptions, WriteOptions])
def test_every_option_is_read_by_the_code_that_follows_it(options: type[ReadOptions] | type[WriteOptions]) -> None:
    read_there = {
        node.attr
        for path in (ROOT / "ottla/spark").rglob("*.py")
        if path.name != "options.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }
    assert {field.name for field in fields(options)} <= read_there


def test_names_are_case_insensitive() -> None:
    assert read(STARTINGOFFSETS="earliest").starting == Offsets(-2)
    assert wants_headers({**BASE, "subscribe": "t", "includeheaders": "TRUE"})


def test_offsets_and_timestamps() -> None:
    assert read(startingOffsets='{"t":{"0":5,"1":-2}}').starting == Offsets(
        each={TopicPartition("t", 0): 5, TopicPartition("t", 1): -2}
    )
    assert read(endingTimestamp="1700000000000").ending == Timestamps(everywhere=1_700_000_000_000)
    both = read(startingTimestamp="1", startingOffsetsByTimestamp='{"t":{"0":2}}', startingOffsets="earliest")
    assert both.starting == Timestamps(everywhere=1)


def test_client_properties_are_mapped() -> None:
    options = read(
        kafka__isolation__level="read_committed", kafka__check__crcs="false", kafka__default__api__timeout__ms="1500"
    )
    assert options.properties.isolation == READ_COMMITTED
    assert not options.properties.check_crc
    assert options.properties.api_timeout_ms == 1500
    written = write_options(
        {**BASE, "topic": "t", "kafka.compression.type": "zstd", "kafka.compression.zstd.level": "7"}, streaming=False
    )
    assert (written.properties.codec, written.properties.level) == (Codec.zstd, 7)


def test_known_properties_without_meaning_are_ignored_with_one_warning_each() -> None:
    warnings = read(kafka__max__poll__records="5", kafka__linger__ms="3", maxOffsetsPerTrigger="5").warnings
    assert [warning.split(" ")[1] for warning in warnings] == [
        "kafka.max.poll.records",
        "kafka.linger.ms",
        "maxOffsetsPerTrigger",
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscribe": "t"}, "kafka.bootstrap.servers is missing"),
        ({"kafka.bootstrap.servers": "nohost", "subscribe": "t"}, "'nohost' is no broker address"),
        ({**BASE}, "nothing to read from"),
        ({**BASE, "subscribe": "t", "assign": "{}"}, "subscribe and assign exclude each other"),
        ({**BASE, "subscribe": " , "}, "must name a topic"),
        ({**BASE, "subscribePattern": "("}, "no regular expression"),
        ({**BASE, "assign": '{"t":"0"}'}, "takes a list of partitions"),
        ({**BASE, "assign": "t"}, "JSON such as"),
        (
            {**BASE, "subscribe": "t", "startingOffset": "latest"},
            "unknown option 'startingOffset'; did you mean startingOffsets",
        ),
        ({**BASE, "subscribe": "t", "kafka.fetch.max.byte": "1"}, "did you mean kafka.fetch.max.bytes"),
        ({**BASE, "subscribe": "t", "startingOffsets": "latest"}, "can't be latest for a batch read"),
        ({**BASE, "subscribe": "t", "startingOffsets": '{"t":{"0":-1}}'}, "t-0 can't be latest"),
        ({**BASE, "subscribe": "t", "endingOffsets": "earliest"}, "can't be earliest for a batch read"),
        ({**BASE, "subscribe": "t", "endingOffsets": '{"t":{"0":-2}}'}, "t-0 can't be earliest"),
        ({**BASE, "subscribe": "t", "startingOffsets": '{"t":5}'}, "takes one number for each partition"),
        ({**BASE, "subscribe": "t", "startingOffsets": '{"t":{"x":5}}'}, "an integer from -2 up"),
        ({**BASE, "subscribe": "t", "minPartitions": "0"}, "minPartitions is 0"),
        ({**BASE, "subscribe": "t", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"}, "is higher than"),
        ({**BASE, "subscribe": "t", "maxTriggerDelay": "soon"}, "a time such as"),
        ({**BASE, "subscribe": "t", "failOnDataLoss": "maybe"}, "must be true or false"),
        ({**BASE, "subscribe": "t", "startingOffsetsByTimestampStrategy": "x"}, "must be error or latest"),
        ({**BASE, "subscribe": "t", "kafka.auto.offset.reset": "latest"}, "startingOffsets says where a query starts"),
        ({**BASE, "subscribe": "t", "kafka.enable.auto.commit": "true"}, "Spark's checkpoint"),
        ({**BASE, "subscribe": "t", "kafka.security.protocol": "TLS"}, "must be one of PLAINTEXT, SSL, SASL_PLAINTEXT"),
        ({**BASE, "subscribe": "t", "kafka.security.protocol": "SASL_SSL"}, "kafka.sasl.jaas.config is missing"),
        (
            {**BASE, "subscribe": "t", "kafka.security.protocol": "SSL", "kafka.ssl.truststore.password": "geheim"},
            "kafka.ssl.*: SSL trust store is not specified, but trust store password is specified.",
        ),
        ({**BASE, "subscribe": "t", "isolation.level": "dirty"}, "must be read_committed or read_uncommitted"),
    ],
)
def test_refusals(options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_options(options, streaming=False)
    assert says in str(caught.value)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(OptionError, match="endingOffsets makes no sense for a stream"):
        read(streaming=True, endingOffsets="latest")


@pytest.mark.parametrize(
    "name",
    ["queryName", "queryname", "checkpointLocation", "path", "asyncProgressTrackingEnabled", "__partition_columns"],
)
def test_what_spark_adds_itself_is_known(name: str) -> None:
    """Before the fix, a stream with a queryName failed with "unknown option 'queryname'", and so did every sink of
    spark-pipelines.
    """
    assert write_options({**BASE, "topic": "t", name: "x"}, streaming=False).warnings == ()
    assert read_options({**BASE, "subscribe": "t", name: "x"}, streaming=False).warnings == ()


def exactly_once(streaming: bool = True, **options: str) -> ExactlyOnce | None:
    given = {name.replace("__", "."): value for name, value in options.items()}
    return write_options({**BASE, "topic": "t", "queryname": "q", **given}, streaming=streaming).exactly_once


def test_a_write_in_transactions() -> None:
    assert exactly_once() is None
    assert exactly_once(ottla__exactlyOnce="true") == ExactlyOnce("q", "", None, "")
    more = {"checkpointlocation": "/c", "ottla__exactlyOnce__topic": "d", "ottla__exactlyOnce__confirm": " skip  17 "}
    assert exactly_once(ottla__exactlyOnce="true", **more) == ExactlyOnce("q", "/c", "d", "skip 17")
    assert exactly_once(False, ottla__exactlyOnce="true", queryname="") is not None
    properties = write_options({**BASE, "topic": "t", "kafka.transaction.timeout.ms": "5"}, streaming=True).properties
    assert properties.transaction_timeout_ms == 5


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"queryname": ""}, r"the stream's name, which its transactions bear: set queryName\(…\)"),
        ({"kafka__acks": "1"}, "needs kafka.acks=all and kafka.enable.idempotence=true"),
        ({"kafka__enable__idempotence": "false"}, "needs kafka.acks=all and kafka.enable.idempotence=true"),
        ({"asyncprogresstrackingenabled": "true"}, "excludes asyncProgressTrackingEnabled"),
        ({"ottla__exactlyOnce__confirm": "skip"}, r"ottla\.exactlyOnce\.confirm is 'skip': it must be what a refusal"),
        ({"kafka__transactional__id": "x"}, "the option ottla.exactlyOnce gives each task an id of its own"),
    ],
)
def test_a_write_in_transactions_is_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        exactly_once(ottla__exactlyOnce="true", **options)


def test_the_properties_of_a_table_are_no_options() -> None:
    """Spark 4.3 passes each option of a table twice, together with the table's properties."""
    given = {**BASE, "subscribe": "t", "failOnDataLoss": "false"}
    table = {"provider": "ottla", "owner": "somebody", "external": "true", "location": "file:/x", "path": "file:/x"}
    more = {"comment": "what it is", "collation": "UTF8_LCASE", "made.by": "a pipeline", "topics": "unknown"}
    marked = {f"option.{name}": value for name, value in given.items()}
    options = read_options({**table, **more, **given, **marked}, streaming=False)
    assert options.warnings == ()
    assert not options.fail_on_data_loss
    with pytest.raises(OptionError, match="unknown option 'subscribes'"):
        read_options({**table, **given, "subscribes": "x", "option.subscribes": "x"}, streaming=False)


def test_a_table_without_its_options_says_where_they_belong() -> None:
    with pytest.raises(OptionError, match=r"kafka.bootstrap.servers is missing.*SELECT … WITH"):
        read_options({}, streaming=False)


@pytest.mark.parametrize(("pattern", "why"), [("a**b", "a \\* that repeats nothing"), (r"\p{Klingon}", "Klingon")])
def test_a_pattern_that_cannot_be_translated_is_refused_with_the_reason(pattern: str, why: str) -> None:
    with pytest.raises(OptionError, match=f"is no regular expression: .*{why}"):
        read_options({**BASE, "subscribePattern": pattern}, streaming=False)


def test_encrypted_connections_have_sparks_names() -> None:
    secured = {
        **BASE,
        "subscribe": "t",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.location": "/t.p12",
        "kafka.ssl.truststore.password": "geheim",
        "kafka.ssl.endpoint.identification.algorithm": "",
    }
    options = read_options(secured, streaming=False)
    tls = pickle.loads(pickle.dumps(options)).properties.security.tls
    assert tls.truststore_location == "/t.p12"
    assert tls.truststore_password.value == "geheim"
    assert not tls.endpoint_identification
    assert "geheim" not in repr(options)
    assert not options.warnings
    assert read_options({**BASE, "subscribe": "t"}, streaming=False).properties.security.tls is None
