"""One broker: creates its parts, starts them and drains them in order. `Broker` implements all protocols of `ports.py`,
so it can be passed to every handler, metric and page that requires some of these protocols.

Start: the metadata is read, the logs are opened and recovered, and the broker registers as running. The broker accepts
clients once it leads all partitions whose only replica it has. Stop: the broker registers as draining and hands over
its partitions, clients' connections are closed, logs are flushed and marked clean, and the registration is withdrawn.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Set
from functools import partial

from ottla.broker import anonymous
from ottla.broker.advertised import ADDRESSES
from ottla.broker.api.declaration import Api
from ottla.broker.api.registry import ROUTES
from ottla.broker.applied_revisions import AppliedRevisions
from ottla.broker.authorizer import authorizer_of
from ottla.broker.awaited_elections import AwaitedElections
from ottla.broker.beginnings import Order
from ottla.broker.cold_reads import ColdReads
from ottla.broker.coordinators import Coordinators
from ottla.broker.counters import TopicCounters
from ottla.broker.deletion_confirmations import DeletionConfirmations
from ottla.broker.directory_moves import DirectoryMoves
from ottla.broker.dispatch import Dispatcher
from ottla.broker.dynamic_settings import DynamicSettings
from ottla.broker.election_counts import ElectionCounts
from ottla.broker.failed_requests import FailedRequests
from ottla.broker.fetch_session_cache import FetchSessionCache
from ottla.broker.group.partitioning import OFFSETS_TOPIC
from ottla.broker.group_service import GroupService
from ottla.broker.hand_over import hand_over
from ottla.broker.inspectors import Inspectors
from ottla.broker.internal_topics import InternalTopics
from ottla.broker.isr import IsrChanges
from ottla.broker.lineage_file import keep_known, read_known
from ottla.broker.log.compactor import Compactor
from ottla.broker.log.directories import LogDirectories
from ottla.broker.log.owner import Owner
from ottla.broker.log.upkeep import Upkeep
from ottla.broker.login.logins import Logins
from ottla.broker.login.mechanisms import Mechanisms, drawn_secret
from ottla.broker.login.own import connect_to_brokers
from ottla.broker.login.token_service import TokenService
from ottla.broker.loop_lag import LoopLag
from ottla.broker.loop_quota import LoopQuota
from ottla.broker.machine import Machine
from ottla.broker.making_way import MakingWay, is_led_elsewhere
from ottla.broker.marker_log import PartitionMarkers
from ottla.broker.marker_sender import MarkerSender
from ottla.broker.membership import Membership
from ottla.broker.monitoring import Monitoring
from ottla.broker.page_access import PageAccess
from ottla.broker.part_settings import compaction_limits, connection_limits, cordoned_paths, upkeep_intervals
from ottla.broker.partitions import PartitionTable
from ottla.broker.producer_id_source import ProducerIdSource
from ottla.broker.readiness import Readiness
from ottla.broker.reopening import Reopening
from ottla.broker.replicas import Listeners, Replicas
from ottla.broker.replication import Replication
from ottla.broker.replication_throttle import LEADER, ReplicationThrottle
from ottla.broker.restore_reports import RestoreReports
from ottla.broker.tasks import Tasks
from ottla.broker.throttling import Throttling
from ottla.broker.topic_descriptions import EncodedTopics
from ottla.broker.transaction.partitioning import TRANSACTIONS_TOPIC
from ottla.broker.transaction_service import TransactionService
from ottla.broker.transaction_verifier import TransactionVerifier
from ottla.metadata.cluster import join_cluster
from ottla.metadata.follower import Follower
from ottla.metadata.image import Image, difference
from ottla.metadata.intents.facade import Intents
from ottla.metadata.intents.users import share_login_secret
from ottla.metadata.lineage import check_logs
from ottla.metadata.own_store import OwnStore
from ottla.metadata.patience import Patience
from ottla.metadata.registration import NodeIdTaken
from ottla.metadata.store import ForeignStore, LeaseId, Store
from ottla.net.server import Server
from ottla.security.tls_listeners import TlsListeners
from ottla.settings.config import BrokerConfig
from ottla.settings.listeners import PAGES
from ottla.settings.listeners import Listeners as OpenedListeners

logger = logging.getLogger(__name__)

PRODUCE = 0
FETCH = 1
PIPELINED = frozenset({PRODUCE})
LEADERSHIP_WAIT_SECONDS = 30.0
INSPECTORS = min(os.cpu_count() or 1, 4)
FETCH_SESSION_EVICTION_SECONDS = 120.0  # as in Kafka, where it isn't a setting either


class Broker:
    """A running broker. The process's main function calls `open`, `register`, `serve` and `stop` in this order."""

    def __init__(self, config: BrokerConfig, store: Store, machine: Machine | None = None) -> None:
        machine = machine or Machine()
        now_ms = machine.now_ms
        self.config = config
        self._opened: OpenedListeners | None = None  # as soon as sockets listen
        self.random = machine.random
        self.id = config.node_id
        self.tls = TlsListeners(serves=True)
        self.connect = connect_to_brokers(machine.connect, self.tls, lambda: self.config)
        self.tasks = Tasks(self._lost)
        self.spawn = self.tasks.spawn  # the method itself, which saves a call for each request that needs a task
        self.partitions: PartitionTable = PartitionTable()
        self.logs: LogDirectories = LogDirectories(
            [os.path.abspath(path) for path in config.log_dirs],
            now_ms,
            Owner(
                high_watermark_of=lambda log: self.replicas.high_watermark_of(log),
                went_offline=lambda logs: self.replicas.went_offline(logs),
                room_again=lambda: self.reopening.room_again(),
                none_left=partial(self.tasks.fail, "every log directory has failed"),  # as in Kafka
            ),
            disk=machine.disk,
            recovery_threads=config.get_int("num.recovery.threads.per.data.dir"),
            threads=machine.threads,
        )
        self.logs.cordoned = cordoned_paths(config)
        store = self.store = OwnStore(store, read_known(self.logs))
        self.follower = Follower(store, self.id)
        self.intents = Intents(store, self.follower, machine.random)
        self.deletions = DeletionConfirmations(self.id, self.intents, self.tasks)
        self.membership: Membership = Membership(
            self.id, store, self.follower, lambda: self.config, self.tasks, machine.renewal, self._registered
        )
        self.upkeep = Upkeep(self.logs, now_ms, upkeep_intervals(config))
        self.replication: Replication = Replication(
            self.id,
            lambda: self.replicas.broker_epoch,
            lambda: self.image,
            lambda: self.config,
            partial(self.tasks.spawn, vital=True),
            self.upkeep.shortened,
            self.connect,
        )
        self.cold_reads: ColdReads = ColdReads(machine.disk_threads)
        self.groups: GroupService = GroupService(
            config,
            lambda: self._partition_count(OFFSETS_TOPIC, "offsets.topic.num.partitions"),
            now_ms,
            self.cold_reads,
            leads_for_sure=lambda: self.membership.silence_seconds < self.membership.session_seconds,
        )
        self.producer_ids = ProducerIdSource(store)
        self.marker_log = PartitionMarkers(self.partitions, self.groups)
        self.transactions: TransactionService = TransactionService(
            config,
            lambda: self._partition_count(TRANSACTIONS_TOPIC, "transaction.state.log.num.partitions"),
            lambda: (
                self.image.features["transaction.version"].level if "transaction.version" in self.image.features else 0
            ),
            self.producer_ids,
            MarkerSender(
                self.id,
                lambda: self.image,
                config.listeners.inter_broker,
                self.marker_log,
                self.connect,
                self.tasks.spawn,
            ),
            now_ms,
            self.cold_reads,
        )
        self.verifier = TransactionVerifier(
            self.id,
            lambda: self.image,
            config.listeners.inter_broker,
            lambda: self.config,
            self.transactions,
            self.connect,
            self.tasks.spawn,
        )
        self.transactional_order = Order(config.get_int("ottla.buffered.memory.bytes.max"))
        self.coordinators = Coordinators({OFFSETS_TOPIC: self.groups, TRANSACTIONS_TOPIC: self.transactions})
        self.replicas: Replicas = Replicas(
            self.id,
            self.partitions,
            self.logs,
            config,
            now_ms,
            self.replication,
            Listeners(
                leadership_changed=self.coordinators.leadership_changed,
                isr_to_be_looked_at=lambda partition: self.isr_changes.wants(partition),
                topic_removed=self.deletions.topic_removed,
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
        self.reopening: Reopening = Reopening(self.logs, self.replicas, self.restore_reports, self.tasks)
        self.awaited_elections = AwaitedElections(self.id, lambda: self.image, _loop_time)
        self.applied_revisions: AppliedRevisions = AppliedRevisions(
            self.id,
            lambda: self.image,
            config.listeners.inter_broker,
            self.awaited_elections,
            self.tasks.spawn,
            self.connect,
        )
        self.authorizer = authorizer_of(config, lambda: self.image)
        for warning in anonymous.warnings(config):
            logger.warning("%s", warning)
        self.encoded_topics = EncodedTopics()
        self.internal_topics = InternalTopics(self.intents, config)
        self.fetch_sessions: FetchSessionCache = FetchSessionCache(
            config.get_int("max.incremental.fetch.session.cache.slots"),
            FETCH_SESSION_EVICTION_SECONDS,
            machine.random,
        )
        apis = (route.api for route in ROUTES.values() if not route.api.own_name)
        self.advertised_apis: list[Api] = sorted(apis, key=lambda api: api.key)
        self.throttling: Throttling = Throttling(config, _loop_time, self.tasks.spawn)
        self.dispatcher: Dispatcher = Dispatcher(self, ROUTES, self.throttling)
        self.failed_requests = FailedRequests(
            self.dispatcher.counters[PRODUCE], self.dispatcher.counters[FETCH], self.replicas.counters_of
        )
        self.request_counters = {
            self.dispatcher.name_of(key): counters for key, counters in self.dispatcher.counters.items()
        }
        self.tokens: TokenService = TokenService(
            self.id,
            lambda: self.config,
            lambda: self.image,
            self.intents,
            lambda: self.applied_revisions,
            now_ms,
            machine.random,
        )
        mechanisms = Mechanisms(lambda: self.image, now_ms, machine.random)
        self.logins: Logins = Logins(config, mechanisms, self.dispatcher.dispatch, now_ms)
        self.server: Server = Server(
            self.dispatcher.dispatch,
            connection_limits(config),
            PIPELINED,
            machine.open_socket,
            machine.busy_poll_seconds,
            machine.disk_threads,
            self.throttling.connection_rates,
            self.logins.begin,
            machine.open_epoll,
            machine.turn_clock,
        )
        self.making_way: MakingWay = MakingWay(
            self.server,
            silence_s=lambda: self.membership.silence_seconds,
            session_s=lambda: self.membership.session_seconds,
            is_led_elsewhere=lambda: is_led_elsewhere(self.id, self.image, config.listeners.inter_broker, self.connect),
            is_registered=lambda: self.membership.shown,
            let_go=self.membership.let_go,
        )
        self.readiness = Readiness(store, self.membership, self.making_way)
        self.inspectors = Inspectors(machine.threads(INSPECTORS), INSPECTORS)  # they check producers' batches
        self.loop_quota = LoopQuota(lambda renew: asyncio.get_running_loop().call_soon(renew))
        self.turns: int = 0  # batches that wait for an inspector, or for other batches before them
        self.compactor: Compactor = Compactor(self.logs, now_ms, compaction_limits(config))
        self.moves = DirectoryMoves(
            self.logs,
            self.partitions,
            lambda: self.image,
            lambda: self.config.get_int("replica.alter.log.dirs.io.max.bytes.per.second"),
            self.tasks,
        )
        self.dynamic_settings = DynamicSettings(self.id, lambda: self.config, self._configured)
        self.loop_lag: LoopLag = LoopLag(lambda: self.server.busy_poll.looked_seconds)
        self.elections = ElectionCounts(lambda: self.controls)
        self.page_access: PageAccess = PageAccess(
            lambda: self.config, self.tls, mechanisms, self.authorizer, lambda: self.image
        )
        if self.page_access.logs_in:
            self.logins.counters[PAGES] = self.page_access.counters
        self.monitoring: Monitoring = Monitoring(self, self.page_access)
        self.controller_name = ""  # the name of the controller in this process; empty where there is none
        self.replication_bytes_out: int = 0
        self.replaced: NodeIdTaken | None = None  # set once another process has this node id

    @property
    def image(self) -> Image:
        """The metadata as this broker has applied it."""
        return self.follower.image

    @property
    def counters(self) -> Mapping[str, TopicCounters]:
        """The traffic counters by topic."""
        return self.replicas.counters

    @property
    def controls(self) -> bool:
        """Whether the controller in this process holds the lease."""
        holder = self.image.controller
        return holder is not None and holder.name == self.controller_name != ""

    async def open(self, patience: Patience) -> None:
        """Joins the cluster, reads the metadata, opens and recovers the logs, and starts the tasks that need them.
        Raises OSError, InvalidTls and the errors of `Patience.answer`."""
        await self.tls.load_pages(self.config)
        await self.monitoring.start()
        self.follower.listen(self.dynamic_settings.changed)
        self.follower.listen(self.authorizer.changed)
        self.follower.listen(self.tokens.changed)
        self.follower.listen(self.awaited_elections.changed)
        self.follower.listen(self.applied_revisions.changed)
        join = partial(join_cluster, self.store, self.logs.cluster_id, may_begin=not self.logs.failed)
        cluster = await patience.answer(join)
        if self.logins.needed or self.page_access.logs_in:
            await patience.answer(partial(share_login_secret, self.store, drawn_secret(self.random)))
            self.logins.start(self.spawn)
        await patience.answer(self.follower.start)
        await self.tls.load(self.config)
        await asyncio.to_thread(self.logs.open, cluster.id, self.id, lambda topic: self.replicas.rules_of(topic).log)
        check_logs(self.image, ((key, log.last_leader_epoch) for key, log in self.logs.logs.items()))
        self.readiness.recovered = True
        self.follower.prepare(self.replicas.prepare)
        self.follower.listen(self.restore_reports.changed)  # before `replicas`, which drop epochs that it reads
        self.follower.listen(self.replicas.changed)
        self.follower.listen(self.isr_changes.registrations_changed)
        self.follower.listen(self.coordinators.changed)
        self.follower.listen(self.throttling.changed)
        self.logs.expect(self.replicas.wanted(self.image))
        everything = difference(Image(), self.image)
        self.restore_reports.changed(self.image, everything)
        self.throttling.changed(self.image, everything)
        self.replicas.changed(self.image, everything)
        self.logs.set_aside_unknown(self.replicas.wants)
        self.spawn(self.follower.run(), "metadata follower", vital=True)
        self.spawn(self._end_with_the_store(), "watch of the store's lineage", vital=True)
        self.spawn(keep_known(self.store, self.logs), "record of the store's lineage")
        if self.config.get_secret("delegation.token.secret.key"):
            self.spawn(self.tokens.delete_expired(), "deletion of expired tokens")
        self.spawn(self.isr_changes.run(), "ISR changes", vital=True)
        self.spawn(self.restore_reports.run(), "reports after a restore", vital=True)
        self.spawn(self.isr_changes.watch_lag(), "lag of followers", vital=True)
        self.spawn(self.making_way.run(), "watch of the store's silence", vital=True)
        if self.tls.encrypted:
            self.spawn(self.tls.follow_files(lambda: self.config), "watch of the certificates' files")
        self.moves.resume()
        self.spawn(self.upkeep.run(), "upkeep of the logs")
        if self.config.get_bool("log.cleaner.enable"):
            self.spawn(self.compactor.run(), "compaction")

    async def register(self, patience: Patience) -> None:
        """Opens the listening sockets and registers with their addresses, as running.

        Raises OSError, NodeIdTaken and the errors of `Patience.answer`.
        """
        self._opened = self.config.listeners
        await self.membership.listen(self.server, self.tls.of)
        await self.membership.register(patience, self.logs.stopped_epoch)
        self.spawn(self.deletions.run(), "confirmation of deletions", vital=True)

    async def serve(self) -> None:
        """Waits until this broker leads all partitions whose only replica it has, for LEADERSHIP_WAIT_SECONDS at most;
        then accepts clients."""
        try:
            await self.follower.wait(lambda image: None if self._unled() else True, LEADERSHIP_WAIT_SECONDS)
        except TimeoutError:
            logger.warning(
                "this broker doesn't lead yet all partitions whose only replica it has; it serves the other partitions"
            )
        self.groups.start()
        self.transactions.start()
        self.server.accept()
        self.readiness.serving = True

    async def stop(self) -> None:
        """Drains the broker and closes all of its parts. Logs are marked as cleanly closed."""
        self.readiness.serving = False
        if self.store.refusal is not None:
            await self.server.close()
        elif self.membership.registered and self.replaced is None:
            await hand_over(self.id, self.follower, self.membership.announce_draining)
        await self.groups.stop()
        await self.transactions.stop()
        await self.internal_topics.stop()
        await self.server.close()
        await self.replication.stop()
        self.isr_changes.stop()
        self.moves.stop()
        # No task may use a log while threads close it. The controller of this process ends here, too: another
        # controller decides about this broker's partitions, and without another one nothing needs to be written.
        await self.tasks.cancel(spared=self.membership.keeping)
        self.inspectors.stop()
        await asyncio.to_thread(self.logs.close, self.replicas.broker_epoch)
        await self.tasks.cancel()
        await self.membership.end(withdrawn=self.store.refusal is None)
        await self.monitoring.stop()

    async def _end_with_the_store(self) -> None:
        raise await self.store.refused()

    def _lost(self, error: ForeignStore | NodeIdTaken) -> None:
        """Stops serving, because the metadata store turned out to be a foreign one, or another process has taken the
        node id."""
        if isinstance(error, ForeignStore):
            self.store.refuse(error)
        else:
            self.replaced = error
        self.readiness.serving = False

    def _registered(self, epoch: int, lease: LeaseId) -> None:
        self.replicas.broker_epoch = epoch
        self.spawn(self.replicas.registered(), "replicas under a new registration", vital=True)
        self.restore_reports.registered(epoch, lease)

    def _unled(self) -> bool:
        return any(
            not partition.leads and tuple(partition.replicas) == (self.id,) and not partition.offline
            for partition in self.partitions
        )

    def _partition_count(self, internal_topic: str, setting: str) -> int:
        """How many partitions an internal topic has; while it doesn't exist, how many it will have."""
        topic = self.image.topics.get(internal_topic)
        return self.config.get_int(setting) if topic is None else len(topic.partitions)

    def _configured(self, config: BrokerConfig, names: Set[str]) -> None:
        """Hands a new configuration to the broker's parts. `names` are the settings whose values differ."""
        if self._opened is not None:
            config = config.serving(self._opened)
        self.config = config  # even where no value differs: DescribeConfigs shows the layer that a value comes from
        if not names:
            return
        self.logs.cordoned = cordoned_paths(config)
        self.server.limits = connection_limits(config)
        self.compactor.limits = compaction_limits(config)
        self.logins.configured(config, names)
        self.replicas.configured(config)
        self.throttling.configured(config)
        if any("ssl." in name for name in names):
            self.spawn(self.tls.follow(config), "other settings of TLS")
        if ADDRESSES in names:
            self.membership.advertise_anew()


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
