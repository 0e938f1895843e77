"""Sends the markers of decided transactions to the leaders of their partitions, until none is missing.

One WriteTxnMarkers request at a time is under way to each broker, with the markers of all transactions that have been
decided since the last request (`outbox.py`). To the partitions that this broker leads, it appends the markers itself.

Why no partition is left without its marker:

1. A partition is dropped only when its leader has confirmed the marker, or when the metadata lacks the partition.
2. The metadata of this broker is never older than the transaction's partitions. A partition joins a transaction only if
   the coordinator's image has it. Images apply changes in their order, so a coordinator that still leads hasn't seen
   the election of its successor: the partition is older than that election, which the successor's image shows.
3. Everything else is tried again: a partition without a leader, a leader that is down or refuses, a lost answer.

A partition that commits nothing may have the markers of very many transactions. A few of them are sent again from time
to time, in the order of the answers. When one is confirmed, the others follow soon.

The attempts end when the transaction has ended, or when this broker no longer coordinates it. The next coordinator
sends all markers again. Source: Kafka's TransactionMarkerChannelManager.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from ottla.broker.outbox import Dial, Outboxes, Spawn
from ottla.broker.transaction.markers import Markers, Verdict
from ottla.broker.transaction.metadata import EPOCH_MAX, V1, TopicPartition
from ottla.metadata.image import Image
from ottla.net.peer import Answer
from ottla.net.streams import Connect
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import read_response, write_request

logger = logging.getLogger(__name__)

WRITE_TXN_MARKERS, _VERSION = 27, 2
AGAIN_S_MIN = 0.05  # before a marker is tried again; doubled after each failure, up to AGAIN_S_MAX
AGAIN_S_MAX = 2.0
UNCOMMITTED_AGAIN_S = 0.5  # before a marker is sent again that was appended, and isn't committed yet; doubled likewise
UNCOMMITTED_AGAIN_MAX = 1000  # markers of one partition that are sent again at a time, as they aren't committed yet
PARTITIONS_MAX = 10_000  # of one request


class Marker(NamedTuple):
    """The marker that ends one transaction. `transaction_version` is the protocol, V1 or V2, by which the transaction
    was ended. With V2, `producer_epoch` is one above the epoch of the ended transaction: the epoch of the producer's
    next transaction."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    transaction_version: int


class MarkerLog(Protocol):
    """The port by which markers are appended to the partitions that this broker leads."""

    async def append_markers(
        self, marker: Marker, partitions: Sequence[TopicPartition], *, patient: bool = False
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Appends `marker` to each partition, and waits until the markers are committed: for a short time, or for as
        long as a tool waits if `patient`. Returns an error code for each partition, REQUEST_TIMED_OUT for a marker that
        was appended and isn't committed yet. Raises nothing."""


class Sending(Protocol):
    """The markers of one decided transaction, as their coordinator follows them."""

    @property
    def markers(self) -> Markers:
        """The transaction, and the partitions whose markers are missing."""

    @property
    def coordinator_epoch(self) -> int:
        """The leader epoch of the partition of `__transaction_state`."""

    @property
    def is_wanted(self) -> bool:
        """Whether this broker still coordinates the transaction, and the transaction hasn't ended."""

    def progressed(self) -> None:
        """Called when fewer markers are missing than before."""


Batch = dict[Sending, set[TopicPartition]]


class _Uncommitted:
    """The transactions whose markers a partition has, and hasn't committed yet, in the order of the answers.
    Some of these markers are sent again after `pause_s`, when `timer` goes off."""

    __slots__ = ("pause_s", "sendings", "timer")

    def __init__(self, timer: asyncio.TimerHandle) -> None:
        self.sendings: OrderedDict[Sending, None] = OrderedDict()
        self.pause_s = UNCOMMITTED_AGAIN_S
        self.timer = timer

    def take(self) -> list[Sending]:
        """Takes the transactions whose markers are sent again now."""
        taken: list[Sending] = []
        while self.sendings and len(taken) < UNCOMMITTED_AGAIN_MAX:
            sending, _ = self.sendings.popitem(last=False)
            if sending.is_wanted:
                taken.append(sending)
        return taken


class MarkerSender:
    """The markers under way from this broker. All methods run on the event loop. `spawn` runs a task until the broker
    stops, `listener` is the name of the brokers' inter-broker listener."""

    def __init__(
        self,
        broker_id: int,
        image: Callable[[], Image],
        listener: str,
        log: MarkerLog,
        connect: Connect,
        spawn: Spawn,
    ) -> None:
        self._id = broker_id
        self._image = image
        self._log = log
        self._spawn = spawn
        self._dial = Dial(image, listener, connect, f"broker-{broker_id}-markers")
        self._outboxes = Outboxes(self._dial, spawn, lambda: _Work(self._answered))
        self._uncommitted: dict[TopicPartition, _Uncommitted] = {}

    def send(self, sending: Sending) -> None:
        """Begins to send all missing markers of one transaction."""
        self._route(sending, sending.markers.missing, 0)

    @property
    def waiting_count(self) -> int:
        """How many markers wait for the requests that are under way to other brokers."""
        return sum(len(partitions) for work in self._outboxes.works() for partitions in work.waiting.values())

    def _route(self, sending: Sending, partitions: Iterable[TopicPartition], failures: int) -> None:
        """Hands each marker to the broker that leads the partition now. `failures` is how often this has failed in a
        row."""
        if not sending.is_wanted:
            return
        image = self._image()
        by_leader: dict[int, list[TopicPartition]] = {}
        gone = False
        for partition in list(partitions):
            leader = self._leader(image, partition)
            if leader is None:
                sending.markers.gone(partition)
                gone = True
            else:
                by_leader.setdefault(leader, []).append(partition)
        if gone or not sending.markers.missing:
            sending.progressed()
        for leader, led in by_leader.items():
            if leader == self._id:
                for marker, marked in markers_of(sending, led).items():
                    self._spawn(self._write_here(sending, marker, marked, failures))
            elif leader < 0:
                self._again(sending, led, failures)
            else:
                self._outboxes.work(leader).add(sending, led)

    def _leader(self, image: Image, partition: TopicPartition) -> int | None:
        """The id of the broker that leads a partition; negative if there is none at present, or if it isn't registered;
        None if the metadata lacks the partition."""
        topic = image.topics.get(partition.topic)
        state = None if topic is None else topic.partitions.get(partition.partition)
        if state is None:
            return None
        return state.leader if self._dial.knows(state.leader) else -1

    async def _write_here(
        self, sending: Sending, marker: Marker, partitions: Sequence[TopicPartition], failures: int
    ) -> None:
        try:
            errors = await self._log.append_markers(marker, partitions)
        except Exception:  # whatever it is, the markers must not be lost
            logger.exception("markers of %s could not be written", sending.markers.transactional_id)
            errors = {}
        self._answered(sending, {each: errors.get(each) for each in partitions}, failures)

    def _answered(self, sending: Sending, errors: Mapping[TopicPartition, ErrorCode | None], failures: int) -> None:
        """Takes a leader's answer for each partition; None where there was no answer."""
        if not sending.is_wanted:
            return
        markers = sending.markers
        again: list[TopicPartition] = []
        uncommitted = 0
        for partition, error in errors.items():
            verdict = Verdict.AGAIN if error is None else markers.answered(partition, error)
            if verdict is Verdict.STOP:
                logger.warning(
                    "%s: the marker for %s-%d was refused with %s, so no further markers are sent",
                    markers.transactional_id, *partition, error.name if error else "",
                )  # fmt: skip
                return
            if verdict is Verdict.DONE:
                self._commits(partition)
            elif verdict is Verdict.OVERTAKEN:
                logger.warning(
                    "%s: %s-%d has a later epoch of producer %d than epoch %d, which its coordinator knows; the "
                    "producer id is fenced there, and whatever it has open there is aborted",
                    markers.transactional_id, *partition, markers.transaction.producer_id, markers.transaction.epoch,
                )  # fmt: skip
                again.append(partition)
            elif error is ErrorCode.request_timed_out:
                self._wait_for_commit(sending, partition)
                uncommitted += 1
            else:
                again.append(partition)
        if len(again) + uncommitted < len(errors):
            sending.progressed()
        if again:
            self._again(sending, again, failures)

    def _again(self, sending: Sending, partitions: Sequence[TopicPartition], failures: int) -> None:
        pause_s = min(AGAIN_S_MIN * 2.0 ** min(failures, 16), AGAIN_S_MAX)
        asyncio.get_running_loop().call_later(pause_s, self._route, sending, partitions, failures + 1)

    def _wait_for_commit(self, sending: Sending, partition: TopicPartition) -> None:
        """Sends a marker again that its partition has, and hasn't committed yet, after a pause."""
        waiting = self._uncommitted.get(partition)
        if waiting is None:
            timer = asyncio.get_running_loop().call_later(UNCOMMITTED_AGAIN_S, self._repeat, partition)
            waiting = self._uncommitted[partition] = _Uncommitted(timer)
        waiting.sendings[sending] = None

    def _commits(self, partition: TopicPartition) -> None:
        """Called when a marker of the partition is confirmed: others are committed by now, too."""
        waiting = self._uncommitted.get(partition)
        if waiting is not None and waiting.sendings and waiting.pause_s > AGAIN_S_MIN:
            waiting.timer.cancel()
            waiting.pause_s = AGAIN_S_MIN
            waiting.timer = asyncio.get_running_loop().call_later(AGAIN_S_MIN, self._repeat, partition)

    def _repeat(self, partition: TopicPartition) -> None:
        waiting = self._uncommitted[partition]
        taken = waiting.take()
        if not taken:  # no marker has come back since the last time
            del self._uncommitted[partition]
            return
        waiting.pause_s = min(2 * waiting.pause_s, AGAIN_S_MAX)
        waiting.timer = asyncio.get_running_loop().call_later(waiting.pause_s, self._repeat, partition)
        for sending in taken:
            self._route(sending, (partition,), 0)


class _Work:
    """The markers for one other broker."""

    def __init__(self, answered: Callable[[Sending, Mapping[TopicPartition, ErrorCode | None], int], None]) -> None:
        self.waiting: Batch = {}
        self._answered = answered

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, sending: Sending, partitions: Iterable[TopicPartition]) -> None:
        """Adds these markers to the next request."""
        self.waiting.setdefault(sending, set()).update(partitions)

    def take(self) -> Batch | None:
        """Takes the markers for the next request, without those of transactions that need no markers any more; see
        `outbox.Work`."""
        batch: Batch = {}
        count = 0
        for sending in list(self.waiting):
            partitions = self.waiting[sending]
            if count and count + len(partitions) > PARTITIONS_MAX:
                break
            del self.waiting[sending]
            if sending.is_wanted:
                batch[sending] = partitions
                count += len(partitions)
        return batch or None

    def request_of(self, batch: Batch) -> tuple[int, int, bytes]:
        """The WriteTxnMarkers request with the markers of `batch`; see `outbox.Work`."""
        return WRITE_TXN_MARKERS, _VERSION, write_request(WRITE_TXN_MARKERS, _VERSION, request_of(batch))

    def answered(self, batch: Batch, answer: Answer) -> None:
        """Reports the broker's answer for each marker of `batch`; see `outbox.Work`."""
        told = read_response(WRITE_TXN_MARKERS, _VERSION, bytes(answer.frame[: answer.end]), answer.start)
        errors: dict[int, dict[TopicPartition, ErrorCode]] = {}
        for marker in told.markers:
            errors.setdefault(marker.producer_id, {}).update(
                (TopicPartition(topic.name, each.partition_index), each.error_code)
                for topic in marker.topics
                for each in topic.partitions
            )
        for sending, partitions in batch.items():
            of_this = errors.get(sending.markers.transaction.producer_id, {})
            self._answered(sending, {each: of_this.get(each) for each in partitions}, 0)

    def unanswered(self, batch: Batch, failures: int) -> None:
        """Reports that no marker of `batch` was answered; see `outbox.Work`. The markers that wait are looked at again,
        too: other brokers may lead their partitions meanwhile."""
        waiting, self.waiting = self.waiting, {}
        for work in (batch, waiting):
            for sending, partitions in work.items():
                self._answered(sending, dict.fromkeys(partitions), failures)


def marker_of(sending: Sending) -> Marker:
    """The marker of a transaction in all partitions that know no later epoch of the producer."""
    transaction = sending.markers.transaction
    return Marker(
        transaction.producer_id,
        transaction.epoch,
        transaction.commits,
        sending.coordinator_epoch,
        transaction.client_version,
    )


def fence_of(sending: Sending) -> Marker:
    """The marker for partitions that know a later epoch of the producer: an abort in the last epoch of the producer id,
    by V1, so that it may be repeated."""
    return Marker(sending.markers.transaction.producer_id, EPOCH_MAX, False, sending.coordinator_epoch, V1)


def markers_of(sending: Sending, partitions: Iterable[TopicPartition]) -> dict[Marker, list[TopicPartition]]:
    """The partitions by the marker that each of them gets."""
    overtaken = sending.markers.overtaken
    if not overtaken:
        return {marker_of(sending): list(partitions)}
    found: dict[Marker, list[TopicPartition]] = {}
    for partition in partitions:
        marker = fence_of(sending) if partition in overtaken else marker_of(sending)
        found.setdefault(marker, []).append(partition)
    return found


def request_of(batch: Mapping[Sending, Iterable[TopicPartition]]) -> dict[str, Any]:
    """A WriteTxnMarkers request with the markers of several transactions."""
    return {
        "markers": [
            _entry(marker, marked)
            for sending, partitions in batch.items()
            for marker, marked in markers_of(sending, partitions).items()
        ]
    }


def _entry(marker: Marker, partitions: Iterable[TopicPartition]) -> dict[str, Any]:
    return {
        "producer_id": marker.producer_id,
        "producer_epoch": marker.producer_epoch,
        "transaction_result": marker.commit,
        "coordinator_epoch": marker.coordinator_epoch,
        "transaction_version": marker.transaction_version,
        "topics": [
            {"name": topic, "partition_indexes": [each.partition for each in group]}
            for topic, group in groupby(sorted(partitions), attrgetter("topic"))
        ],
    }
