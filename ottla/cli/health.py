"""The state of brokers' disks: log directories that are full or failed, logs that can't be read, and the bytes that
recovery cut off at a broker's start.

A broker with a full directory serves reads and refuses writes. A producer then retries until its time-out, and its
error doesn't say why. So commands ask the brokers for the cause over Kafka's protocol. DescribeLogDirs has a
directory's error and its usable bytes (0 if the broker appends no more). DescribeConfigs has the unreadable logs and
the bytes that recovery cut off, as settings of Ottla's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.cli.connection import explained
from ottla.cli.errors import CommandError
from ottla.settings.own import DAMAGED, RECOVERED
from ottla.wording import counted, size_text

if TYPE_CHECKING:
    from ottla.cli.connection import Cluster

KAFKA_STORAGE_ERROR = 56
_REQUEST_TIMED_OUT = 7
FULL = "full: nothing is appended until there is room"
FAILED = "failed: its partitions are offline"
_VERB = {FULL: "is full", FAILED: "has failed"}
_REMEDY = {
    FULL: "Make room on its volume, or shorten retention (`ottla log-dirs` shows the sizes); "
    "the broker then continues by itself.",
    FAILED: "The broker's log says why; the broker uses the directory again after a restart.",
}


class Directory(NamedTuple):
    """A broker's log directory that is full or has failed."""

    broker: int
    path: str
    trouble: str

    def error(self) -> CommandError:
        """The directory's trouble as an error, or as the cause of another error."""
        return CommandError(
            f"log directory {self.path} of broker {self.broker} {_VERB.get(self.trouble, self.trouble)}",
            _REMEDY.get(self.trouble, ""),
            kafka_code=KAFKA_STORAGE_ERROR,
        )


class Damaged(NamedTuple):
    """A place in a log that `broker` couldn't read: in its own replica's log, or in the leader's log that it copies."""

    broker: int
    topic: str
    partition: int
    offset: int | None
    trouble: str

    def line(self) -> str:
        """The place and its trouble as one sentence."""
        where = f" at offset {self.offset}" if self.offset is not None else ""
        return f"{self.topic}:{self.partition} can't be read{where}: {self.trouble} (reported by broker {self.broker})"


class Recovered(NamedTuple):
    """The bytes that log recovery cut off at a broker's start, the number of cut logs, and the first few cuts."""

    broker: int
    logs: int
    bytes_dropped: int
    cuts: list[dict[str, Any]]

    def line(self) -> str:
        """The bytes and the number of logs as one sentence."""
        logs = counted(self.logs, "log")
        return f"At the start of broker {self.broker} recovery cut {size_text(self.bytes_dropped)} off {logs}"


def trouble(directory: Mapping[str, Any]) -> str:
    """The trouble of a directory in DescribeLogDirs' answer; empty if it has none. Pure."""
    if directory["error_code"]:
        return FAILED if directory["error_code"] == KAFKA_STORAGE_ERROR else f"error {directory['error_code']}"
    return FULL if directory.get("usable_bytes", -1) == 0 else ""


def cut_text(cut: Mapping[str, Any]) -> str:
    """The text for people about one cut that recovery made in a log. Pure."""
    lost = f"{size_text(cut['bytes_dropped'])} dropped" if cut["bytes_dropped"] else "nothing dropped"
    missing = f", {counted(cut['missing'], 'committed offset')} missing here" if cut["missing"] else ""
    return f"{cut['topic']}:{cut['partition']} ends at offset {cut['offset']}: {cut['reason']}; {lost}{missing}"


def directories(cluster: Cluster, brokers: Iterable[int]) -> list[Directory]:
    """The log directories of these brokers that are full or have failed. A broker that doesn't answer has none."""
    return [
        Directory(answer["broker"], directory["log_dir"], found)
        for answer in described(cluster, brokers)
        for directory in answer["log_dirs"]
        if (found := trouble(directory))
    ]


def described(cluster: Cluster, brokers: Iterable[int], topics: list[str] | None = None) -> list[dict[str, Any]]:
    """DescribeLogDirs' answers, from each of these brokers that answers."""
    answers: list[dict[str, Any]] = []
    for broker in sorted(brokers):
        asking = partial(cluster.admin.describe_log_dirs, topics, brokers=[broker])
        answers += _answer("the log directories", asking) or ()
    return answers


def told(cluster: Cluster, brokers: Iterable[int], name: str, subject: str) -> Iterator[tuple[int, str]]:
    """Asks brokers for a read-only setting of Ottla's own. Yields (broker, value) for each broker that answers.

    Brokers that don't know the setting (Apache Kafka's) are left out. `subject` names the value in errors, such as "the
    load".
    """
    from kafka.admin import ConfigResource, ConfigResourceType

    for broker in sorted(brokers):
        resource = ConfigResource(ConfigResourceType.BROKER, str(broker), {name: None})
        asking = partial(cluster.admin.describe_configs, [resource], config_filter="all")
        answer = _answer(f"{subject} of broker {broker}", asking) or {}
        setting = answer.get("broker", {}).get(str(broker), {}).get(name)
        if setting is not None:
            yield broker, setting["value"]


def _answer(subject: str, ask: Callable[[], Any]) -> Any:
    """A broker's answer; None if the broker can't be reached."""
    from kafka.errors import KafkaConnectionError, NodeNotReadyError, UnknownBrokerIdError

    with explained(subject):
        try:
            return ask()
        except (KafkaConnectionError, NodeNotReadyError, UnknownBrokerIdError):
            return None


def recovered(cluster: Cluster, brokers: Iterable[int]) -> list[Recovered]:
    """The bytes that recovery cut off at the brokers' starts. Brokers without a cut or an answer are left out."""
    answers = {broker: json.loads(value) for broker, value in told(cluster, brokers, RECOVERED, "the settings")}
    return [
        Recovered(broker, answer["logs"], answer["bytes_dropped"], answer["cuts"])
        for broker, answer in answers.items()
        if answer["logs"]
    ]


def damaged(cluster: Cluster, brokers: Iterable[int]) -> list[Damaged]:
    """The places in logs that these brokers couldn't read, from each of the brokers that answers."""
    return sorted(
        (
            Damaged(broker, each["topic"], each["partition"], each["offset"], each["trouble"])
            for broker, value in told(cluster, brokers, DAMAGED, "the settings")
            for each in json.loads(value)
        ),
        key=lambda one: (one.topic, one.partition, one.broker),
    )


def with_cause(cluster: Cluster, error: CommandError) -> CommandError:
    """The error, with its cause if that can be found.

    If a broker's request timed out, and a log directory is full or has failed, this directory counts as the cause: the
    metadata store may be on the same volume.
    """
    if error.kafka_code != _REQUEST_TIMED_OUT or not (found := directories(cluster, cluster.living())):
        return error
    cause = found[0].error()
    return CommandError(f"{error.message}: {cause.message}", cause.remedy, error.exit_code, error.kafka_code)


def check_directories(cluster: Cluster, brokers: Iterable[int]) -> None:
    """Raises CommandError if a log directory of one of these brokers is full or has failed."""
    for directory in directories(cluster, brokers):
        raise directory.error()
