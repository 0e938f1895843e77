"""One broker: builds its parts, starts and drains them in order. API handlers reach all parts through it.

Start: the metadata is read, the logs are opened and recovered, and the broker registers as running. It accepts clients
once it leads all partitions whose only replica it has. Stop: the broker registers as draining and hands over its
partitions, clients' connections are closed, logs are flushed and marked clean, and the registration is withdrawn.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from collections.abc import Coroutine, Iterable, Iterator
from functools import partial
from typing import Any
from uuid import UUID

from ottla.broker.advertised import ADDRESSES, advertised
from ottla.broker.api.registry import Api, load_routes
from ottla.broker.applied_revisions import AppliedRevisions
from ottla.broker.authorizer import allow_everything
from ottla.broker.awaited_elections import AwaitedElections
from ottla.broker.cold_reads import ColdReads
from ottla.broker.dispatch import Dispatcher
from ottla.broker.election_counts import ElectionCounts
from ottla.broker.fetch_session_cache import FetchSessionCache
from ottla.broker.group.partitioning import OFFSETS_TOPIC
from ottla.broker.group_service import GroupService
from ottla.broker.inspectors import Inspectors
from ottla.broker.internal_topics import InternalTopics
from ottla.broker.isr import IsrChanges
from ottla.broker.lineage_file import keep_known, read_known
from ottla.broker.log.compactor import Compactor
from ottla.broker.log.directories import LogDirectories
from ottla.broker.log.moves import Moves
from ottla.broker.log.owner import Owner
from ottla.broker.log.upkeep import Upkeep
from ottla.broker.loop_lag import LoopLag
from ottla.broker.loop_quota import LoopQuota
from ottla.broker.machine import Machine
from ottla.broker.making_way import MakingWay, is_led_elsewhere
from ottla.broker.monitoring import Monitoring
from ottla.broker.part_settings import compaction_limits, connection_limits, cordoned_paths, upkeep_intervals
from ottla.broker.partition import Partition
from ottla.broker.partitions import PartitionTable
from ottla.broker.producer_id_source import ProducerIdSource
from ottla.broker.replicas import Listeners, Replicas
from ottla.broker.replication import Replication
from ottla.broker.replication_throttle import LEADER, ReplicationThrottle
from ottla.broker.restore_reports import RestoreReports
from ottla.broker.topic_descriptions import EncodedTopics
from ottla.metadata.cluster import join_cluster
from ottla.metadata.follower import Follower
from ottla.metadata.image import Changed, Image, difference
from ottla.metadata.intents.facade import Intents
from ottla.metadata.lineage import check_logs
from ottla.metadata.model.brokers import Broker as Registered
from ottla.metadata.model.brokers import BrokerState, Endpoint
from ottla.metadata.model.partitions import Partition as PartitionState
from ottla.metadata.own_store import OwnStore
from ottla.metadata.patience import Patience
from ottla.metadata.registration import NodeIdTaken, Registration
from ottla.metadata.store import ForeignStore, LeaseExpired, Store, StoreUnavailable
from ottla.net.server import Server
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.settings.config import BrokerConfig

logger = logging.getLogger(__name__)

_ANNOUNCED_AGAIN_S = 0.5
# A store without room for writes answers each try with a refusal: a stop waits this long, well below a supervisor's
# limit.
_ANNOUNCING_S = 5.0
_HANDING_OVER_S = 15.0
# A client whose connection is closed asks any broker for the new leader: by then all brokers must know it. Clients that
# send requests to this broker meanwhile are told the new leader.
_LINGERING_S = 0.5

PRODUCE = 0
FETCH = 1
PIPELINED = frozenset({PRODUCE})
LEADERSHIP_WAIT_SECONDS = 30.0
INSPECTORS = min(os.cpu_count() or 1, 4)
FETCH_SESSION_EVICTION_SECONDS = 120.0  # as in Kafka, where it is no setting either


class Broker:
    """A running broker. The process's main function calls `open`, `register`, `serve` and `stop` in this order."""

    def __init__(self, config: BrokerConfig, store: Store, machine: Machine | None = None) -> None:
        machine = machine or Machine()
        now_ms = machine.now_ms
        self._renewal = machine.renewal
        self.config = config
        self.id = config.node_id
        self.partitions: PartitionTable = PartitionTable()
        self._removed_topics: asyncio.Queue[UUID] = asyncio.Queue()
        self.logs: LogDirectories = LogDirectories(
            [os.path.abspath(path) for path in config.log_dirs],
            now_ms,
            Owner(
                high_watermark_of=lambda log: self.replicas.high_watermark_of(log),
                went_offline=lambda logs: self.replicas.went_offline(logs),
                room_again=self._room_again,
                none_left=self._without_logs,
            ),
            disk=machine.disk,
            recovery_threads=config.get_int("num.recovery.threads.per.data.dir"),
            threads=machine.threads,
        )
        self.logs.cordoned = cordoned_paths(config)
        store = self.store = OwnStore(store, read_known(self.logs))
        self.follower = Follower(store, self.id)
        self.upkeep = Upkeep(self.logs, now_ms, upkeep_intervals(config))
        self.replication: Replication = Replication(
            self.id,
            lambda: self.replicas.broker_epoch,
            lambda: self.image,
            lambda: self.config,
            lambda coroutine, name: self.spawn(coroutine, name, vital=True),
            self.upkeep.shortened,
            machine.connect,
        )
        self.replicas: Replicas = Replicas(
            self.id,
            self.partitions,
            self.logs,
            config,
            now_ms,
            self.replication,
            Listeners(
                leadership_changed=self._leadership_changed,
                isr_to_be_looked_at=lambda partition: self.isr_changes.wants(partition),
                topic_removed=self._removed_topics.put_nowait,
            ),
            _loop_time,
        )
        self.isr_changes: IsrChanges = IsrChanges(
            self.id,
            store,
            lambda: self.image,
            lambda: self.replicas.broker_epoch,
            lambda: self.config.get_int("replica.lag.time.max.ms") / 1000,
            lambda: self.partitions,
            self.replicas.writable,
        )
        self.leader_throttle = ReplicationThrottle(LEADER, self.id, lambda: self.image, lambda: self.config)
        self.restore_reports = RestoreReports(self.id, store, self.logs, self.partitions)
        self.intents = Intents(store, self.follower, machine.random)
        self.awaited_elections = AwaitedElections(self.id, lambda: self.image, _loop_time)
        self.applied_revisions: AppliedRevisions = AppliedRevisions(
            self.id,
            lambda: self.image,
            config.listeners.inter_broker,
            self.awaited_elections,
            self.spawn,
            machine.connect,
        )
        self.encoded_topics = EncodedTopics()
        self.internal_topics = InternalTopics(self.intents, config)
        self.cold_reads: ColdReads = ColdReads(machine.disk_threads)
        self.groups: GroupService = GroupService(
            config,
            self._group_partition_count,
            now_ms,
            self.cold_reads,
            leads_for_sure=lambda: self.store_silence_seconds < self.session_seconds,
        )
        self._coordinators = {OFFSETS_TOPIC: self.groups}
        self.producer_ids = ProducerIdSource(store)
        self.fetch_sessions: FetchSessionCache = FetchSessionCache(
            config.get_int("max.incremental.fetch.session.cache.slots"),
            FETCH_SESSION_EVICTION_SECONDS,
            machine.random,
        )
        routes = load_routes()
        apis = (route.api for route in routes.values() if not route.api.own_name)
        self.advertised_apis: list[Api] = sorted(apis, key=lambda api: api.key)
        self.dispatcher: Dispatcher = Dispatcher(self, routes, allow_everything)
        self.server: Server = Server(
            self.dispatcher.dispatch,
            connection_limits(config),
            PIPELINED,
            machine.open_socket,
            machine.busy_poll_seconds,
            machine.disk_threads,
        )
        self.making_way: MakingWay = MakingWay(
            self.server,
            silence_s=lambda: self.store_silence_seconds,
            session_s=lambda: self.session_seconds,
            is_led_elsewhere=lambda: is_led_elsewhere(
                self.id, self.image, config.listeners.inter_broker, machine.connect
            ),
            is_registered=self._is_seen_registered,
            let_go=self._let_go,
        )
        self.inspectors = Inspectors(machine.threads(INSPECTORS), INSPECTORS)  # of producers' batches
        self.loop_quota = LoopQuota(lambda renew: asyncio.get_running_loop().call_soon(renew))
        self.turns: int = 0  # batches that wait for an inspector, or for other batches before them
        self.compactor: Compactor = Compactor(self.logs, now_ms, compaction_limits(config))
        self.moves = Moves(self.logs, lambda: self.config.get_int("replica.alter.log.dirs.io.max.bytes.per.second"))
        self.endpoints: dict[str, Endpoint] = {}
        self._ports: dict[str, int] = {}
        self.loop_lag: LoopLag = LoopLag(lambda: self.server.busy_poll.looked_seconds)
        self.elections = ElectionCounts(lambda: self.controls)
        self.monitoring: Monitoring = Monitoring(self)
        self.controller_name = ""  # of the controller in this process; empty where there is none
        self.recovered = False
        self.replication_bytes_out: int = 0
        self.ready = False
        self._registration: Registration | None = None
        self._keeping_alive: asyncio.Task[Any] | None = None
        self.failed = asyncio.Event()
        self.replaced: NodeIdTaken | None = None  # set once another process has this node id
        self._tasks: set[asyncio.Task[Any]] = set()
        self._vital: set[asyncio.Task[Any]] = set()

    @property
    def image(self) -> Image:
        """The metadata as this broker has applied it."""
        return self.follower.image

    @property
    def counters(self) -> dict[str, Any]:
        """The traffic counters by topic."""
        return self.replicas.counters

    @property
    def session_seconds(self) -> float:
        """How many seconds the registration outlives a process that no longer renews it."""
        return self.config.get_int("broker.session.timeout.ms") / 1000

    @property
    def store_silence_seconds(self) -> float:
        """For how many seconds the metadata store hasn't confirmed the registration; 0 before there is a
        registration."""
        registration = self._registration
        return registration.unconfirmed_s if registration is not None and registration.made else 0.0

    @property
    def bootstrap(self) -> str:
        """An advertised address of this broker, as host:port."""
        endpoint = next(iter(self.endpoints.values()))
        return f"{endpoint.host}:{endpoint.port}"

    @property
    def controls(self) -> bool:
        """Whether the controller in this process holds the lease."""
        holder = self.image.controller
        return holder is not None and holder.name == self.controller_name != ""

    @property
    def not_ready_because(self) -> str:
        """The reason why clients can't be served, as a sentence; empty when they can."""
        if self.making_way.made:
            return "the metadata store answers other brokers, and not this one"
        if self.ready:
            return ""
        if self.store.refusal is not None:
            return str(self.store.refusal)
        if not self.recovered:
            return "the logs are being recovered"
        if self._registration is None or not self._registration.made:
            return "the broker isn't registered yet"
        return "the broker is starting to lead, or draining"

    # ---- life

    async def open(self, patience: Patience) -> None:
        """Joins the cluster, reads the metadata, opens and recovers the logs. Raises OSError and the errors of
        `Patience.answer`."""
        await self.monitoring.start()
        self.follower.listen(self._configured)
        self.follower.listen(self.awaited_elections.changed)
        self.follower.listen(self.applied_revisions.changed)
        join = partial(join_cluster, self.store, self.logs.cluster_id, may_begin=not self.logs.failed)
        cluster = await patience.answer(join)
        await patience.answer(self.follower.start)
        await asyncio.to_thread(self.logs.open, cluster.id, self.id, lambda topic: self.replicas.rules_of(topic).log)
        check_logs(self.image, ((key, log.last_leader_epoch) for key, log in self.logs.logs.items()))
        self.recovered = True
        self.follower.prepare(self.replicas.prepare)
        self.follower.listen(self.restore_reports.changed)  # before replicas drop the epochs that it needs
        self.follower.listen(self.replicas.changed)
        self.follower.listen(self.isr_changes.registrations_changed)
        self.follower.listen(self._topics_deleted)
        self.logs.expect(self.replicas.wanted(self.image))
        everything = difference(Image(), self.image)
        self.restore_reports.changed(self.image, everything)
        self.replicas.changed(self.image, everything)
        self.logs.set_aside_unknown(self.replicas.wants)
        self.spawn(self.follower.run(), "metadata follower", vital=True)
        self.spawn(self._end_with_the_store(), "watch of the store's lineage", vital=True)
        self.spawn(keep_known(self.store, self.logs), "record of the store's lineage")
        self.spawn(self.isr_changes.run(), "ISR changes", vital=True)
        self.spawn(self.restore_reports.run(), "reports after a restore", vital=True)
        self.spawn(self.isr_changes.watch_lag(), "lag of followers", vital=True)
        self.spawn(self.making_way.run(), "watch of the store's silence", vital=True)
        for topic_id, index, target in self.logs.interrupted_moves:
            if topic_id is not None and index is not None and (topic_id, index) in self.logs.logs:
                self._move((topic_id, index), target)
        self.spawn(self.upkeep.run(), "upkeep of the logs")
        if self.config.get_bool("log.cleaner.enable"):
            self.spawn(self.compactor.run(), "compaction")

    async def register(self, patience: Patience) -> None:
        """Opens the listening sockets and registers with their addresses, as running.

        Raises OSError, NodeIdTaken and the errors of `Patience.answer`.
        """
        self.endpoints = await self._listen()
        registered = Registered(
            id=self.id,
            epoch=-1,
            endpoints=self.endpoints,
            rack=self.config.get_str("broker.rack") or None,
            state=BrokerState.RUNNING,
            host=platform.node(),
        )
        renewal = self._renewal(self.store, self.config.get_int("ottla.event.loop.stall.ms.max") / 1000)
        registration = self._registration = Registration(
            self.store, registered, renewal, self.session_seconds, told=self._registered
        )
        self.follower.listen(registration.noticed)
        await patience.answer(lambda: registration.register(self.logs.stopped_epoch))
        self._keeping_alive = self.spawn(registration.run(), "registration", vital=True)
        self.spawn(self._confirm_deletions(), "confirmation of deletions", vital=True)

    def _is_seen_registered(self) -> bool:
        """Whether this broker's image shows its present registration."""
        seen = self.image.brokers.get(self.id)
        return seen is not None and seen.epoch == self.replicas.broker_epoch

    def _let_go(self) -> None:
        assert self._registration is not None
        self._registration.let_go()

    def _registered(self, broker: Registered) -> None:
        assert self._registration is not None
        self.replicas.broker_epoch = broker.epoch
        self.spawn(self.replicas.registered(), "replicas under a new registration", vital=True)
        self.restore_reports.registered(broker.epoch, self._registration.lease)

    async def serve(self) -> None:
        """Waits until this broker leads all partitions whose only replica it has, for LEADERSHIP_WAIT_SECONDS at most;
        then accepts clients."""
        try:
            await self.follower.wait(lambda image: None if self._unled() else True, LEADERSHIP_WAIT_SECONDS)
        except TimeoutError:
            logger.warning("some partitions have no leader yet; clients of the others are served")
        self.groups.start()
        self.server.accept()
        self.ready = True

    async def stop(self) -> None:
        """Drains the broker and closes all of its parts. Logs are marked as cleanly closed."""
        self.ready = False
        if self.store.refusal is not None:
            await self.server.close()
        elif self._registration is not None and self._registration.made and self.replaced is None:
            led = any(partition.leader == self.id for partition in self._to_hand_over(self.image))
            try:
                async with asyncio.timeout(_ANNOUNCING_S):
                    await self._registration.change(state=BrokerState.DRAINING)
            except Exception as error:  # whatever the store's error is, the logs must be closed
                reason = str(error) or f"the metadata store didn't take it within {_ANNOUNCING_S:g} s"
                logger.warning("draining couldn't be announced: %s", reason)
            else:
                await self._hand_over()
                if led:
                    await asyncio.sleep(_LINGERING_S)
        await self.groups.stop()
        await self.internal_topics.stop()
        await self.server.close()
        await self.replication.stop()
        self.isr_changes.stop()
        self.moves.stop()
        # No task may use a log while threads close it. The controller of this process ends here, too: another
        # controller decides about this broker's partitions, and without another one nothing needs to be written.
        await self._cancel(self._tasks - {self._keeping_alive})
        self.inspectors.stop()
        await asyncio.to_thread(self.logs.close, self.replicas.broker_epoch)
        await self._cancel(self._tasks)
        if self._registration is not None:
            await (self._registration.withdraw() if self.store.refusal is None else self._registration.abandon())
        await self.monitoring.stop()

    async def _end_with_the_store(self) -> None:
        raise await self.store.refused()

    async def _hand_over(self) -> None:
        """Waits until the controller has elected other leaders for this broker's partitions and has taken this broker
        out of the ISRs, wherever the ISR has another running member. Otherwise a leader would wait for this broker's
        fetches, which don't come any more."""
        try:
            await self.follower.wait(lambda image: None if any(self._to_hand_over(image)) else True, _HANDING_OVER_S)
        except TimeoutError:
            left = sum(partition.leader == self.id for partition in self._to_hand_over(self.image))
            logger.warning("stopping while %d partitions could be led by others", left)

    def _to_hand_over(self, image: Image) -> Iterator[PartitionState]:
        """The partitions whose ISR has this broker and another running broker. Partitions restored from a backup are
        left out, because their ISR isn't decided yet."""
        running = {broker.id for broker in image.brokers.values() if broker.electable and broker.id != self.id}
        for partitions in image.partitions.values():
            for partition in partitions.values():
                if self.id in partition.isr and not running.isdisjoint(partition.isr) and not partition.restored:
                    yield partition

    async def _cancel(self, tasks: Iterable[asyncio.Task[Any] | None]) -> None:
        ended = [task for task in tasks if task is not None]
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)

    def move_replica(self, topic: str, index: int, directory: str) -> None:
        """Begins to move a replica to another log directory. Raises KafkaError where that directory or the replica
        can't be used."""
        partition = self.partitions.get(topic, index)
        target = directory.rstrip("/") or "/"
        if target not in self.logs.paths:
            raise KafkaError(ErrorCode.log_dir_not_found)
        if target in self.logs.failed:
            raise KafkaError(ErrorCode.kafka_storage_error)
        if target in self.logs.cordoned and not (
            partition is not None and self.logs.directory_of(partition.log) == target
        ):
            raise KafkaError(ErrorCode.invalid_replica_assignment)
        if partition is None:
            known = self.image.topics.get(topic) is not None
            raise KafkaError(ErrorCode.replica_not_available if known else ErrorCode.unknown_topic_or_partition)
        if partition.offline:
            raise KafkaError(ErrorCode.kafka_storage_error)
        self._move((partition.topic_id, index), target)

    def _move(self, key: tuple[UUID, int], target: str) -> None:
        if self.moves.wish(key, target):
            self.spawn(self.moves.run(key), f"move of {self.logs.logs[key]!r} to {target}")

    def spawn(
        self, coroutine: Coroutine[Any, Any, Any], name: str | None = None, *, vital: bool = False
    ) -> asyncio.Task[Any]:
        """Runs a coroutine in a task of this broker. The task is cancelled when the broker stops, and a failure is
        logged.

        If a `vital` task fails, the broker can't go on: `failed` is set, and the process has to stop the broker.
        """
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        if vital:
            self._vital.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        vital = task in self._vital
        self._tasks.discard(task)
        self._vital.discard(task)
        error = None if task.cancelled() else task.exception()
        if vital and isinstance(error, ForeignStore | NodeIdTaken):
            if not self.failed.is_set():
                logger.error("the broker stops: %s", error)
            if isinstance(error, ForeignStore):
                self.store.refuse(error)
            else:
                self.replaced = error
            self.ready = False
            self.failed.set()
        elif error is not None:
            logger.error("task %s failed%s", task.get_name(), ": the broker stops" if vital else "", exc_info=error)
            if vital:
                self.failed.set()

    async def _listen(self) -> dict[str, Endpoint]:
        for endpoint in self.config.listeners.opened:
            opened = await self.server.listen(endpoint.listener, endpoint.host, endpoint.port)
            self._ports[endpoint.listener] = opened.port
        return advertised(self.config, self._ports, platform.node())

    async def _advertise(self) -> None:
        """Registers with other addresses, and tries again for as long as the store can't be reached."""
        assert self._registration is not None
        while True:
            self.endpoints = advertised(self.config, self._ports, platform.node())
            try:
                await self._registration.change(endpoints=self.endpoints)
                return
            except (StoreUnavailable, LeaseExpired) as reason:
                logger.warning("new addresses couldn't be announced: %s", reason)
                await asyncio.sleep(_ANNOUNCED_AGAIN_S)

    def _unled(self) -> bool:
        return any(
            not partition.leads and tuple(partition.replicas) == (self.id,) and not partition.offline
            for partition in self.partitions
        )

    def _without_logs(self) -> None:
        """All log directories have failed. As in Kafka the process ends, so that other brokers are elected leaders."""
        logger.error("every log directory has failed: the broker stops")
        self.failed.set()

    def _group_partition_count(self) -> int:
        topic = self.image.topics.get(OFFSETS_TOPIC)
        return self.config.get_int("offsets.topic.num.partitions") if topic is None else len(topic.partitions)

    def _leadership_changed(self, partition: Partition, leads: bool) -> None:
        coordinator = self._coordinators.get(partition.topic)
        if coordinator is None:
            return
        if leads:
            coordinator.became_leader(partition)
        else:
            coordinator.lost_leadership(partition.index)

    def _room_again(self) -> None:
        self.replicas.open_again()
        self.spawn(self._open_again(), "opening of logs for which there is room again")

    async def _open_again(self) -> None:
        await self.logs.open_again(lambda topic: self.replicas.rules_of(topic).log, self._log_tried_again)

    def _log_tried_again(self, topic_id: UUID, index: int) -> None:
        self.replicas.log_tried_again(topic_id, index)
        self.restore_reports.logs_opened()

    async def _confirm_deletions(self) -> None:
        """Confirms deletions of topics one after the other, and not before this process has the node id: until then
        another process may have it."""
        while True:
            topic_id = await self._removed_topics.get()
            await asyncio.wait(
                [self.spawn(self.intents.confirm_deletion(self.id, topic_id), f"deletion of {topic_id}")]
            )

    def _topics_deleted(self, image: Image, changed: Changed) -> None:
        """Makes groups delete the offsets that they committed for deleted topics."""
        deleted = [image.tombstones[topic_id].name for topic_id in changed.tombstones if topic_id in image.tombstones]
        if deleted:
            self.groups.topics_deleted(deleted)

    def _configured(self, image: Image, changed: Changed) -> None:
        """Applies changes of dynamic broker settings."""
        if not any(resource.type == "broker" for resource in changed.configs):
            return
        config, names = self.config.with_dynamic(image.config("broker", str(self.id)), image.config("broker", ""))
        self.config = config  # even where no value differs: descriptions show which layer a value is from
        for warning in config.warnings:
            logger.warning("%s", warning)
        if not names:
            return
        logger.info("settings changed: %s", ", ".join(sorted(names)))
        self.logs.cordoned = cordoned_paths(config)
        self.server.limits = connection_limits(config)
        self.compactor.limits = compaction_limits(config)
        self.replicas.configured(config)
        if ADDRESSES in names and self._registration is not None:
            self.spawn(self._advertise(), "other addresses")

    # ---- counts of refused partitions

    def count_produce_failure(self, topic: str | bytes, size_bytes: int, error: int) -> None:
        """Counts a refused batch of a producer, of `size_bytes`."""
        self.dispatcher.counters[PRODUCE].failed(error)
        counters = self.replicas.counters_of(topic)
        if counters is not None:
            counters.failed_produce_requests += 1
            counters.bytes_rejected += max(size_bytes, 0)

    def count_fetch_failure(self, topic: str | bytes, error: int) -> None:
        """Counts a refused partition of a fetch."""
        self.dispatcher.counters[FETCH].failed(error)
        counters = self.replicas.counters_of(topic)
        if counters is not None:
            counters.fetch_requests += 1
            counters.failed_fetch_requests += 1


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
