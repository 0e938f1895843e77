"""Makes this broker's replicas follow the metadata: opens, leads, resigns, reconfigures and deletes them.

A listener of the image: it runs on the event loop for every change, before tasks that waited for the change run.

Rules: state is looked up by topic id, never by name. A broker leads only by a partition state that was written for its
present registration (`PartitionState.leads`). A replica's directory is deleted only in two cases: on a tombstone for
its topic id; or when, while this broker runs, a state of the partition names other brokers as replicas, is newer than
the state that the replica last followed, and isn't from a backup. A directory that the metadata doesn't know, or that
other brokers were given while this broker was stopped, is left for `LogDirectories` to set aside.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from ottla.broker.admission import AdmissionRules
from ottla.broker.counters import TopicCounters
from ottla.broker.log.config import LogConfig
from ottla.broker.log.creation import NewLog
from ottla.broker.log.directories import LogDirectories
from ottla.broker.log.disk import NO_ROOM
from ottla.broker.log.log import Log
from ottla.broker.log.without_room import BeingOpened
from ottla.broker.partition import Partition
from ottla.broker.partitions import PartitionTable
from ottla.broker.topic_rules import admission_rules, log_config, target_codec
from ottla.metadata.image import Changed, Image
from ottla.metadata.model.partitions import NO_LEADER
from ottla.metadata.model.partitions import Partition as PartitionState
from ottla.settings.config import BrokerConfig
from ottla.settings.topic_config import TopicConfig

logger = logging.getLogger(__name__)

TOPIC = "topic"
COMPRESSION = "compression.type"
AS_PRODUCED = "producer"
LOOKED_AT_AT_ONCE = 100  # partitions, which takes some milliseconds


class _TopicRules:
    """The rules that follow from one topic's configuration. The topic's partitions share them; topics without settings
    of their own share the default ones."""

    __slots__ = ("admission", "codec", "log", "min_isr", "unclean")

    def __init__(self, topic: TopicConfig, broker: BrokerConfig) -> None:
        self.log: LogConfig = log_config(topic, broker)
        self.admission: AdmissionRules = admission_rules(topic, broker)
        self.codec = target_codec(topic)
        self.min_isr = topic.get_int("min.insync.replicas")
        self.unclean = topic.get_bool("unclean.leader.election.enable")


class Following(Protocol):
    """The port to `Replication`, which copies partitions from their leaders."""

    def follow(self, partition: Partition) -> None:
        """Copies the partition from its leader; called for each leader and epoch."""

    def unfollow(self, partition: Partition) -> None:
        """Ends the copying of the partition."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """The callbacks for events of replicas, called on the event loop."""

    leadership_changed: Callable[[Partition, bool], None]
    """Called with True when this broker begins to lead the partition, and with False when it stops."""
    isr_to_be_looked_at: Callable[[Partition], None]
    """Called when this broker becomes able or unable to write to the partition's log, or when the brokers that may lead
    the partition have changed."""
    topic_removed: Callable[[UUID], None]
    """Called when no log directory of this broker has anything of a deleted topic any more."""


class Replicas:
    """Keeps a `PartitionTable` in step with the image."""

    def __init__(
        self,
        broker_id: int,
        table: PartitionTable,
        logs: LogDirectories,
        config: BrokerConfig,
        now_ms: Callable[[], int],
        following: Following,
        listeners: Listeners,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.broker_epoch = -1  # the present registration's epoch, which the node sets
        self.counters: dict[str, TopicCounters] = {}
        self._following = following
        self._listeners = listeners
        self._broker_id = broker_id
        self._table = table
        self._logs = logs
        self._config = config
        self._now_ms = now_ms
        self._clock = clock
        self._image = Image()
        table.lost = logs.lost
        self._rules: dict[str, _TopicRules] = {}
        self._default_rules = _TopicRules(TopicConfig.resolve(config, {}), config)
        self._unopened: set[tuple[UUID, int]] = set()  # the disk is full, or the directory's name is in use
        self._preparing: set[tuple[UUID, int]] = set()  # replicas whose logs a thread is creating
        self._note_codecs()

    async def prepare(self, image: Image, changed: Changed) -> None:
        """Creates in a thread the logs that the method `changed` will need for this change, because each creation waits
        for the disk."""
        rules: dict[str, _TopicRules] = {}
        wanted = []
        for topic_id, index in sorted(changed.partitions):
            state = image.partition(topic_id, index)
            intent = image.intents_by_id.get(topic_id)
            if state is None or intent is None or self._broker_id not in state.replicas:
                continue
            if self._table.get_by_id(topic_id, index) is None:
                if intent.name not in rules:
                    topic = TopicConfig.resolve(self._config, image.config(TOPIC, intent.name))
                    rules[intent.name] = _TopicRules(topic, self._config)
                wanted.append(NewLog(intent.name, index, topic_id, rules[intent.name].log))
        self._preparing = {(new.topic_id, new.partition) for new in wanted}
        try:
            await self._logs.create_ahead(wanted)
        finally:
            self._preparing = set()

    def changed(self, image: Image, changed: Changed) -> None:
        """Applies the changes of a new image."""
        self._image = image
        self._table.image = image
        for topic_id in changed.tombstones:
            if topic_id in image.tombstones:
                self._delete_topic(topic_id)
        configured = [resource.name for resource in changed.configs if resource.type == TOPIC]
        for topic in configured:
            self._reconfigure(topic)
        if configured:
            self._note_codecs()
        for topic_id, index in changed.partitions:
            state = image.partition(topic_id, index)
            if state is not None:
                self._follow(topic_id, index, state)

    async def registered(self) -> None:
        """Applies this broker's new registration, `broker_epoch`: the broker no longer leads the partitions that it led
        under the old registration, and begins to lead those that the metadata gave to the new registration before this
        broker knew of it.

        Pauses in between, because there may be thousands of partitions. A partition that hasn't been looked at yet is
        led as before. That is safe: its followers have left this leader, or are about to, and its ISR isn't written
        under the new registration.
        """
        for count, partition in enumerate(list(self._table), 1):
            state = self._image.partition(partition.topic_id, partition.index)
            if state is not None and self._table.get_by_id(partition.topic_id, partition.index) is partition:
                if state.leads(self._broker_id, self.broker_epoch):
                    known = partition.leads and partition.leader_epoch == state.leader_epoch
                else:
                    known = not partition.leads
                if not known:
                    self._take_part(partition, state)
            if count % LOOKED_AT_AT_ONCE == 0:
                await asyncio.sleep(0)

    def configured(self, config: BrokerConfig) -> None:
        """Applies changed settings of the broker, which topics inherit."""
        self._config = config
        self._default_rules = _TopicRules(TopicConfig.resolve(config, {}), config)
        self._rules.clear()
        for partition in self._table:
            self._apply_rules(partition)
        self._note_codecs()

    def wanted(self, image: Image) -> list[tuple[UUID, int]]:
        """The (topic id, index) of the replicas that an image gives this broker."""
        return [
            (topic_id, index)
            for topic_id, partitions in image.partitions.items()
            for index, state in partitions.items()
            if self._broker_id in state.replicas
        ]

    def wants(self, topic_id: UUID, index: int) -> bool:
        """Whether the metadata gives this broker that replica, or may do so later, because the partition's state was
        restored from a backup."""
        state = self._image.partition(topic_id, index)
        return state is not None and (state.restored or self._broker_id in state.replicas)

    def went_offline(self, logs: list[Log]) -> None:
        """Takes the partitions of these logs offline: their log directory has failed, or they are damaged."""
        lost = set(logs)
        for partition in self._table:
            if partition.log in lost and not partition.offline:
                self._following.unfollow(partition)
                partition.go_offline()
                self._listeners.leadership_changed(partition, False)
                self._listeners.isr_to_be_looked_at(partition)

    def writable(self, partition: Partition) -> bool:
        """Whether the partition is online and its log directory isn't full."""
        return not partition.offline and self._logs.directory_of(partition.log) not in self._logs.full

    def high_watermark_of(self, log: Log) -> int:
        """The high watermark to checkpoint for a log."""
        partition = self._table.get(log.topic, log.index)
        if partition is None or partition.log is not log:
            return self._checkpointed(log)
        return partition.high_watermark

    def _checkpointed(self, log: Log) -> int:
        """A log's high watermark from the checkpoint that was read when the logs were opened, limited to the log's
        offsets."""
        known = self._logs.high_watermarks.get((log.topic, log.index), 0)
        return min(max(known, log.log_start_offset), log.log_end_offset)

    def counters_of(self, topic: str | bytes) -> TopicCounters | None:
        """A topic's counters by its name or the 16 bytes of its id; None where this broker has no replica of the
        topic."""
        if isinstance(topic, str):
            return self.counters.get(topic)
        held = self._table.of_id(UUID(bytes=topic))
        return held[0].counters if held else None

    def rules_of(self, topic: str) -> _TopicRules:
        """The rules that follow from a topic's present configuration."""
        overrides = self._image.config(TOPIC, topic)
        if not overrides:
            return self._default_rules
        rules = self._rules.get(topic)
        if rules is None:
            rules = self._rules[topic] = _TopicRules(TopicConfig.resolve(self._config, overrides), self._config)
        return rules

    def open_again(self) -> None:
        """Called when a log directory that was full has room again: creates the logs that couldn't be created, and lets
        followers join ISRs."""
        self._create_again()
        for partition in self._table:
            if partition.leads:
                self._listeners.isr_to_be_looked_at(partition)  # a leader that can't write admits no follower

    def log_tried_again(self, topic_id: UUID, index: int) -> None:
        """Called after another attempt, successful or not, to open a log that couldn't be opened on a full disk. Lets
        the replica follow the metadata again. A log that isn't this broker's any more is set aside, as it would have
        been at the start."""
        self._unopened.discard((topic_id, index))
        state = self._image.partition(topic_id, index)
        if state is not None and (topic_id, index) not in self._preparing:
            self._follow(topic_id, index, state)
        self._logs.set_aside_unknown(self.wants, [(topic_id, index)])
        self._create_again()  # replicas that wanted this directory's name

    def _create_again(self) -> None:
        """Tries again to create the logs that couldn't be created. (Logs on the disk that couldn't be opened are left
        out: a thread opens them.)"""
        unopened = self._unopened - self._preparing - self._logs.lost.keys()  # `changed` takes the prepared logs
        self._unopened -= unopened
        for topic_id, index in unopened:
            state = self._image.partition(topic_id, index)
            if state is not None:
                self._follow(topic_id, index, state)

    def _follow(self, topic_id: UUID, index: int, state: PartitionState) -> None:
        partition = self._table.get_by_id(topic_id, index)
        if self._broker_id not in state.replicas:
            if partition is not None:
                self._give_up(partition, state)
            elif not state.restored:
                self._logs.moved_to_others(topic_id, index)
            return
        if partition is None:
            partition = self._open(topic_id, index)
            if partition is None:
                return
        self._take_part(partition, state)

    def _give_up(self, partition: Partition, state: PartitionState) -> None:
        """Gives up a replica, because `state` names only other brokers, which are all in sync. The log is deleted only
        if `state` is newer than the state that was followed: brokers that an older state names may lack records written
        since then."""
        self._retire(partition, "the replica was moved to other brokers")
        newer = state.partition_epoch > partition.partition_epoch and state.leader_epoch >= partition.epoch
        if newer and not state.restored:
            self._logs.delete(partition.topic_id, partition.index)
        else:
            logger.error(
                "%r: the metadata gives this replica to brokers %s by a state that isn't newer than the state that was"
                " followed here (leader epoch %d, partition epoch %d): the replica's log isn't deleted",
                partition, list(state.replicas), partition.epoch, partition.partition_epoch,
            )  # fmt: skip

    def _open(self, topic_id: UUID, index: int) -> Partition | None:
        intent = self._image.intents_by_id.get(topic_id)
        if intent is None:
            return None
        rules = self.rules_of(intent.name)
        try:
            log = self._logs.open_or_create(intent.name, index, topic_id, rules.log)
        except OSError as error:
            logger.error("%s-%d: the log can't be opened: %s", intent.name, index, error)
            if error.errno in NO_ROOM or isinstance(error, BeingOpened):
                self._unopened.add((topic_id, index))
            return None
        counters = self.counters.get(intent.name)
        if counters is None:
            counters = self.counters[intent.name] = TopicCounters()
        write_failed = self._listeners.isr_to_be_looked_at
        partition = Partition(intent.name, topic_id, index, log, counters, self._now_ms, write_failed, self._clock)
        partition.high_watermark = self._checkpointed(log)
        self._apply_rules(partition)
        self._table.add(partition)
        return partition

    def _apply_rules(self, partition: Partition) -> None:
        rules = self.rules_of(partition.topic)
        partition.rules = rules.admission
        partition.target_codec = rules.codec
        partition.min_isr = rules.min_isr
        partition.elected_uncleanly = rules.unclean
        partition.log.config = rules.log
        partition.isr_moved()

    def _take_part(self, partition: Partition, state: PartitionState) -> None:
        led = partition.leads
        epoch = partition.leader_epoch
        if partition.offline:
            partition.epoch = state.leader_epoch
            if state.leads(self._broker_id, self.broker_epoch):
                self._listeners.isr_to_be_looked_at(partition)
            return
        if state.leads(self._broker_id, self.broker_epoch):
            self._following.unfollow(partition)
            partition.become_leader(state)
            if not led or partition.leader_epoch != epoch:
                self._listeners.leadership_changed(partition, True)
            if state.recovering or len(state.isr) < len(state.replicas):
                self._listeners.isr_to_be_looked_at(partition)
            return
        followed = (partition.leader, partition.epoch)
        partition.become_follower(state)
        if led:
            self._listeners.leadership_changed(partition, False)
        if state.leader in (NO_LEADER, self._broker_id):
            partition.leader = NO_LEADER  # the state is for an earlier registration of this broker
            self._following.unfollow(partition)
        elif followed != (state.leader, state.leader_epoch):
            self._following.follow(partition)

    def _reconfigure(self, topic: str) -> None:
        self._rules.pop(topic, None)
        for partition in self._table.of_topic(topic):
            self._apply_rules(partition)

    def _note_codecs(self) -> None:
        self._table.any_takes_turns = self._default_rules.codec is not None or any(
            config.entries.get(COMPRESSION, AS_PRODUCED) != AS_PRODUCED
            for resource, config in self._image.configs.items()
            if resource.type == TOPIC
        )

    def _delete_topic(self, topic_id: UUID) -> None:
        tombstone = self._image.tombstones[topic_id]
        held = self._table.of_id(topic_id)
        if self._broker_id not in tombstone.pending and not held:
            return  # removed already, or a replica was only being moved here when the topic was deleted
        for partition in held:
            self._retire(partition, "the topic is deleted")
        self._logs.delete_topic(topic_id)
        if not self._table.of_topic(tombstone.name):
            self.counters.pop(tombstone.name, None)
        if not self._logs.failed:  # the next start checks again: a failed directory may come back
            self._listeners.topic_removed(topic_id)

    def _retire(self, partition: Partition, reason: str) -> None:
        """Ends this broker's role in the partition, and removes the replica from the table."""
        led = partition.leads
        self._following.unfollow(partition)
        self._table.remove(partition)
        partition.leave(reason)
        if led:
            self._listeners.leadership_changed(partition, False)
