"""Parses and checks the data source's options, before anything is read. Pure.

Names, defaults and rules are those of Spark's Kafka source (KafkaSourceProvider). An invalid value is refused with a
message that has the option, the value and the values that are accepted. An unknown option is refused with the name of
the most similar known one. `properties` checks the Java client properties, whose names begin with `kafka.`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ottla.net.names import EARLIEST, LATEST, TopicPartition, parse_bootstrap

from .java_pattern import Untranslatable, compiled
from .properties import ClientProperties, client_properties

KNOWN = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "includeHeaders",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "topic",
    "ottla.exactlyOnce",
    "ottla.exactlyOnce.topic",
    "ottla.exactlyOnce.confirm",
)
# Options that Spark uses itself and also passes to the data source (DataStreamWriter,
# AsyncProgressTrackingMicroBatchExecution, DataSourceUtils).
SPARKS = frozenset(
    """
    path checkpointlocation queryname asyncprogresstrackingenabled asyncprogresstrackingcheckpointintervalms
    _asyncprogresstrackingoverridesinksupportcheck __partition_columns __clustering_columns
    """.split()
)
_TABLE_OPTION = "option."  # TableCatalog.OPTION_PREFIX
_BY_LOWER = {name.lower(): name for name in KNOWN}
_STRATEGIES = ("subscribe", "subscribePattern", "assign")
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "us": 0.001}


class OptionError(ValueError):
    """An option is missing or unknown, contradicts another option, or has a value that can't be used."""


@dataclass(frozen=True)
class Offsets:
    """A bound given by offsets: LATEST or EARLIEST for all partitions, or an offset, LATEST or EARLIEST for each."""

    everywhere: int | None = None
    each: Mapping[TopicPartition, int] | None = None


@dataclass(frozen=True)
class Timestamps:
    """A bound given by timestamps in ms: one for all partitions, or one for each."""

    everywhere: int | None = None
    each: Mapping[TopicPartition, int] | None = None


Bound = Offsets | Timestamps


@dataclass(frozen=True)
class Subscription:
    """The partitions to read: all of `topics`, all of the topics that match `pattern`, or `partitions`.

    Exactly one of the three fields is set.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True)
class ReadOptions:
    """The checked options of a read. Warnings are messages for the log.

    `offset_attempts` is the option fetchOffset.numRetries, and `no_match` is startingOffsetsByTimestampStrategy.
    """

    properties: ClientProperties
    subscription: Subscription
    starting: Bound
    ending: Bound
    no_match: Literal["error", "latest"]
    fail_on_data_loss: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    poll_timeout_ms: int
    offset_attempts: int
    offset_retry_interval_ms: int
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class ExactlyOnce:
    """The options of a write in transactions. For a stream `query` is its name, and `checkpoint` its location.

    `topic` is the topic of decisions (None: the default one). `confirmed` is what the user allows after a refusal.
    """

    query: str
    checkpoint: str
    topic: str | None
    confirmed: str


@dataclass(frozen=True)
class WriteOptions:
    """The checked options of a write. If `topic` is None, each row has its own. Warnings are messages for the log.

    `exactly_once` is None for a write that is at least once.
    """

    properties: ClientProperties
    topic: str | None
    exactly_once: ExactlyOnce | None
    warnings: tuple[str, ...]


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Checks `options` for a batch or a streaming read. Raises OptionError."""
    own, properties = _split(options, "consumer")
    warnings = list(properties.warnings)
    subscription = _subscription(own)
    default_start = LATEST if streaming else EARLIEST
    starting = _bound(own, "starting", Offsets(default_start))
    ending = _bound(own, "ending", Offsets(LATEST))
    if streaming:
        for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
            if name in own:
                raise OptionError(f"{name} makes no sense for a stream, which has no end: remove it, or read a batch")
    else:
        _check_batch_bounds(starting, ending)
        for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
            if name in own:
                warnings.append(f"option {name} has no meaning in a batch read and is ignored")
    strategy = own.get("startingOffsetsByTimestampStrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise OptionError(f"startingOffsetsByTimestampStrategy is '{strategy}': it must be error or latest")
    _boolean(own, "includeHeaders", False)  # refuses an invalid value; `wants_headers` uses a valid one
    most, least = _positive(own, "maxOffsetsPerTrigger"), _positive(own, "minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise OptionError(f"minOffsetsPerTrigger ({least}) is higher than maxOffsetsPerTrigger ({most})")
    if "topic" in own:
        warnings.append("option topic is for writing; a read takes subscribe, subscribePattern or assign")
    attempts = _integer(own, "fetchOffset.numRetries", 3, 0)
    interval_ms = _integer(own, "fetchOffset.retryIntervalMs", 1000, 0)
    return ReadOptions(
        properties=replace(properties, unknown_retries=attempts, unknown_interval_ms=interval_ms),
        subscription=subscription,
        starting=starting,
        ending=ending,
        no_match="latest" if strategy == "latest" else "error",
        fail_on_data_loss=_boolean(own, "failOnDataLoss", True),
        min_partitions=_positive(own, "minPartitions"),
        max_records_per_partition=_positive(own, "maxRecordsPerPartition"),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=_duration_ms(own, "maxTriggerDelay", "15m"),
        poll_timeout_ms=_integer(own, "kafkaConsumer.pollTimeoutMs", 120_000, 0),
        offset_attempts=attempts,
        offset_retry_interval_ms=interval_ms,
        warnings=tuple(warnings),
    )


def wants_headers(options: Mapping[str, str]) -> bool:
    """Whether a batch or streaming read has the column `headers`.

    Raises OptionError if an option is unknown, or if the subscription or includeHeaders is invalid.
    """
    own, _ = _split(options, "consumer")
    _subscription(own)
    return _boolean(own, "includeHeaders", False)


def write_options(options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Checks `options` for a batch or a streaming write. Raises OptionError."""
    own, properties = _split(options, "producer")
    warnings = list(properties.warnings)
    for name in own:
        if name not in ("topic", "includeHeaders") and not name.startswith("ottla.exactlyOnce"):
            warnings.append(f"option {name} has no meaning in a write and is ignored")
    topic = own.get("topic")
    if topic is not None and not topic.strip():
        raise OptionError("option topic is empty")
    _boolean(own, "includeHeaders", False)  # refuses an invalid value; a valid one has no effect on a write
    return WriteOptions(
        properties=properties,
        topic=None if topic is None else topic.strip(),
        exactly_once=_exactly_once(own, options, properties, streaming),
        warnings=tuple(warnings),
    )


def _exactly_once(
    own: Mapping[str, str], options: Mapping[str, str], properties: ClientProperties, streaming: bool
) -> ExactlyOnce | None:
    if not _boolean(own, "ottla.exactlyOnce", False):
        return None
    if properties.acks != -1 or not properties.idempotent:
        raise OptionError("ottla.exactlyOnce needs kafka.acks=all and kafka.enable.idempotence=true: remove the others")
    sparks = {name.lower(): value for name, value in options.items() if name.lower() in SPARKS}
    if not streaming:
        return ExactlyOnce("", "", None, "")
    if not sparks.get("queryname"):
        raise OptionError("ottla.exactlyOnce needs the stream's name, which its transactions bear: set queryName(…)")
    if sparks.get("asyncprogresstrackingenabled", "false").strip().lower() == "true":
        raise OptionError(
            "ottla.exactlyOnce excludes asyncProgressTrackingEnabled: several written batches could come again"
        )
    topic = own.get("ottla.exactlyOnce.topic", "").strip()
    confirmed = " ".join(own.get("ottla.exactlyOnce.confirm", "").split())
    if confirmed and not re.fullmatch(r"(skip|rewrite) \d+|replace \S+", confirmed):
        raise OptionError(
            f"ottla.exactlyOnce.confirm is '{confirmed}': it must be what a refusal asked for, as 'skip 17', "
            "'rewrite 17' or 'replace <query id>'"
        )
    return ExactlyOnce(sparks["queryname"], sparks.get("checkpointlocation", ""), topic or None, confirmed)


def kafka_options(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of a Kafka client as options of the data source."""
    return {f"kafka.{name}": value for name, value in properties.items()}


def _split(
    options: Mapping[str, str], side: Literal["consumer", "producer"]
) -> tuple[dict[str, str], ClientProperties]:
    own: dict[str, str] = {}
    client: dict[str, str] = {}
    for given, value in _given(options).items():
        lower = given.lower()
        if lower in SPARKS:
            continue
        if lower.startswith("kafka."):
            client[lower.removeprefix("kafka.")] = value
        elif lower in _BY_LOWER:
            own[_BY_LOWER[lower]] = value
        elif lower == "isolation.level":
            client[lower] = value
        else:
            near = difflib.get_close_matches(lower, [*_BY_LOWER, "kafka.bootstrap.servers"], 1, 0.5)
            hint = f"; did you mean {_BY_LOWER.get(near[0], near[0])}?" if near else ""
            raise OptionError(f"unknown option '{given}'{hint}")
    if "bootstrap.servers" not in client:
        table = "" if options else "; a table's options don't reach its queries: add them, as in SELECT … WITH (…)"
        raise OptionError(
            f"option kafka.bootstrap.servers is missing: give a broker's host:port, for example localhost:9092{table}"
        )
    try:
        parse_bootstrap(client["bootstrap.servers"])
        return own, client_properties(client, side)
    except ValueError as error:
        raise OptionError(str(error)) from None


def _given(options: Mapping[str, str]) -> Mapping[str, str]:
    """The options that the user gave, without the other properties of a table.

    For a table of CREATE TABLE, Spark passes options and all properties of the table (provider, comment, owner, those
    of TBLPROPERTIES) in one dictionary, and repeats each option under the name `option.<name>`. If the dictionary has
    the property `provider`, only names that are repeated in this way are options.
    """
    if "provider" not in {name.lower() for name in options}:
        return options
    marked = {name.lower() for name in options}
    return {name: value for name, value in options.items() if _TABLE_OPTION + name.lower() in marked}


def _subscription(own: Mapping[str, str]) -> Subscription:
    given = [name for name in _STRATEGIES if name in own]
    if not given:
        raise OptionError("nothing to read from: give one of subscribe, subscribePattern and assign")
    if len(given) > 1:
        raise OptionError(
            f"{' and '.join(given)} exclude each other: give one of subscribe, subscribePattern and assign"
        )
    value = own[given[0]]
    if given[0] == "subscribe":
        topics = tuple(dict.fromkeys(filter(None, (part.strip() for part in value.split(",")))))
        if not topics:
            raise OptionError(f"subscribe is '{value}': it must name a topic, or several separated by commas")
        return Subscription(topics=topics)
    if given[0] == "subscribePattern":
        if not value.strip():
            raise OptionError("subscribePattern is empty: it must be a regular expression of topic names")
        try:
            compiled(value.strip())
        except Untranslatable as error:
            raise OptionError(f"subscribePattern '{value}' is no regular expression: {error}") from None
        return Subscription(pattern=value.strip())
    content = _json(own, "assign", '{"topic":[0,1]}')
    partitions = []
    for topic, indexes in content.items():
        if not isinstance(indexes, list) or not all(type(index) is int and index >= 0 for index in indexes):
            raise OptionError(f"assign is '{value}': each topic takes a list of partitions, as in {{\"topic\":[0,1]}}")
        partitions += [TopicPartition(topic, index) for index in indexes]
    if not partitions:
        raise OptionError(f"assign is '{value}': it names no partition")
    return Subscription(partitions=tuple(dict.fromkeys(partitions)))


def _bound(own: Mapping[str, str], side: str, default: Offsets) -> Bound:
    """The bound at one `side` of a read, which is `starting` or `ending`.

    If several options give this bound, one is taken, in Spark's order of precedence: the timestamp for all partitions,
    then the timestamps by partition, then the offsets.
    """
    if f"{side}Timestamp" in own:
        return Timestamps(everywhere=_integer(own, f"{side}Timestamp", 0, 0))
    if f"{side}OffsetsByTimestamp" in own:
        return Timestamps(each=_by_partition(own, f"{side}OffsetsByTimestamp", 0))
    name = f"{side}Offsets"
    text = own.get(name, "").strip()
    if not text:
        return default
    if text.lower() in ("latest", "earliest"):
        return Offsets(LATEST if text.lower() == "latest" else EARLIEST)
    return Offsets(each=_by_partition(own, name, EARLIEST))


def _check_batch_bounds(starting: Bound, ending: Bound) -> None:
    if isinstance(starting, Offsets):
        if starting.everywhere == LATEST:
            raise OptionError("startingOffsets can't be latest for a batch read: nothing would be left to read")
        for partition, offset in (starting.each or {}).items():
            if offset == LATEST:
                raise OptionError(f"startingOffsets for {partition} can't be latest (-1) for a batch read")
    if isinstance(ending, Offsets):
        if ending.everywhere == EARLIEST:
            raise OptionError("endingOffsets can't be earliest for a batch read: nothing would be left to read")
        for partition, offset in (ending.each or {}).items():
            if offset == EARLIEST:
                raise OptionError(f"endingOffsets for {partition} can't be earliest (-2) for a batch read")


def _by_partition(own: Mapping[str, str], name: str, lowest: int) -> dict[TopicPartition, int]:
    content = _json(own, name, '{"topic":{"0":23,"1":-2}}')
    found = {}
    for topic, partitions in content.items():
        if not isinstance(partitions, dict):
            raise OptionError(
                f'{name}: topic \'{topic}\' takes one number for each partition, as in {{"{topic}":{{"0":23}}}}'
            )
        for index, number in partitions.items():
            if not index.isdigit() or type(number) is not int or number < lowest:
                raise OptionError(f"{name}: {topic}-{index} is {number!r}; an integer from {lowest} up is needed")
            found[TopicPartition(topic, int(index))] = number
    return found


def _json(own: Mapping[str, str], name: str, example: str) -> dict[str, Any]:
    try:
        content = json.loads(own[name])
    except json.JSONDecodeError:
        content = None
    if not isinstance(content, dict):
        raise OptionError(f"{name} is '{own[name]}': JSON such as {example} is needed")
    return content


def _boolean(own: Mapping[str, str], name: str, default: bool) -> bool:
    text = own.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise OptionError(f"{name} is '{own[name]}': it must be true or false")
    return text == "true"


def _integer(own: Mapping[str, str], name: str, default: int, lowest: int) -> int:
    text = own.get(name, str(default)).strip()
    try:
        number = int(text)
    except ValueError:
        raise OptionError(f"{name} is '{text}': it must be an integer") from None
    if number < lowest:
        raise OptionError(f"{name} is {number}: it must be at least {lowest}")
    return number


def _positive(own: Mapping[str, str], name: str) -> int | None:
    return _integer(own, name, 1, 1) if name in own else None


def _duration_ms(own: Mapping[str, str], name: str, default: str) -> int:
    """A duration in ms. As in Spark's settings, the text is a number with a unit, or a number of milliseconds."""
    text = own.get(name, default).strip().lower()
    matched = re.fullmatch(r"(\d+)\s*([a-z]*)", text)
    if matched is None or (matched[2] or "ms") not in _UNITS_MS:
        raise OptionError(f"{name} is '{text}': a time such as 500ms, 10s or 15m is needed")
    return int(int(matched[1]) * _UNITS_MS[matched[2] or "ms"])
