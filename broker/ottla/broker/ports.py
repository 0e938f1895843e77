"""The ports of a broker: the parts of it that the handlers of APIs, the metrics and the pages may use.

A port is a `typing.Protocol` for one part of the broker, read-only wherever its users only read it. A module combines
the ports that it uses into a protocol of its own, or takes a single port as it is:

    class Parts(WithConfig, WithImage, Protocol): ...

    async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]

A module with many ports imports this module and writes `ports.WithConfig`, so that no list of ports is written twice.

At run time `broker` is the broker itself (`node.Broker`), so a port adds nothing to the cost of a request. mypy checks
both sides: a module uses only the parts that its ports have, and the broker, which `node.py` gives to dispatch and to
the pages, has all of these parts. Only the code that starts a process imports `node`.

A combination has single ports as its base classes, and at most one other combination: Python refuses a class if two of
its base classes list common base classes in different orders. mypy accepts a broker with many ports wherever some of
them are required, because it compares protocols by their members.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import asyncio

    from ottla.broker.api.declaration import Api
    from ottla.broker.applied_revisions import AppliedRevisions
    from ottla.broker.authorizer import Authorizer
    from ottla.broker.awaited_elections import AwaitedElections
    from ottla.broker.beginnings import Order
    from ottla.broker.cold_reads import ColdReads
    from ottla.broker.counters import ApiCounters, TopicCounters
    from ottla.broker.directory_moves import DirectoryMoves
    from ottla.broker.election_counts import ElectionCounts
    from ottla.broker.failed_requests import FailedRequests
    from ottla.broker.fetch_session_cache import FetchSessionCache
    from ottla.broker.group_service import GroupService
    from ottla.broker.inspectors import Inspectors
    from ottla.broker.internal_topics import InternalTopics
    from ottla.broker.isr import IsrChanges
    from ottla.broker.log.compactor import Compactor
    from ottla.broker.log.directories import LogDirectories
    from ottla.broker.login.logins import Logins
    from ottla.broker.login.token_service import TokenService
    from ottla.broker.loop_lag import LoopLag
    from ottla.broker.loop_quota import LoopQuota
    from ottla.broker.marker_sender import MarkerLog
    from ottla.broker.membership import Membership
    from ottla.broker.partitions import PartitionTable
    from ottla.broker.producer_id_source import ProducerIdSource
    from ottla.broker.readiness import Readiness
    from ottla.broker.replicas import Replicas
    from ottla.broker.replication import Replication
    from ottla.broker.replication_throttle import ReplicationThrottle
    from ottla.broker.throttling import Throttling
    from ottla.broker.topic_descriptions import EncodedTopics
    from ottla.broker.transaction_service import TransactionService
    from ottla.broker.transaction_verifier import TransactionVerifier
    from ottla.metadata.follower import Follower
    from ottla.metadata.image import Image
    from ottla.metadata.intents.facade import Intents
    from ottla.metadata.store import Store
    from ottla.net.server import Server
    from ottla.security.tls_listeners import TlsListeners
    from ottla.settings.config import BrokerConfig


class WithAdvertisedApis(Protocol):
    """The APIs in the answer to ApiVersions."""

    @property
    def advertised_apis(self) -> Sequence[Api]:
        """Kafka's APIs that this broker serves, by their keys in ascending order."""


class WithAppliedRevisions(Protocol):
    """The wait until the other brokers have applied a change of the metadata."""

    @property
    def applied_revisions(self) -> AppliedRevisions:
        """The revisions that the other brokers have applied, as far as this broker knows."""


class WithAuthorizer(Protocol):
    """The rights of clients."""

    @property
    def authorizer(self) -> Authorizer:
        """The authorizer, which says what the client of a request may do."""


class WithAwaitedElections(Protocol):
    """The wait for the successors of dead leaders."""

    @property
    def awaited_elections(self) -> AwaitedElections:
        """The elections for which responses about partitions wait."""


class WithBatchChecks(Protocol):
    """The check of producers' batches, on the event loop or in threads."""

    turns: int
    """How many batches wait for a thread that checks them, or for other batches before them. Produce counts them."""

    @property
    def inspectors(self) -> Inspectors:
        """The threads that check batches."""

    @property
    def loop_quota(self) -> LoopQuota:
        """The rest of the event loop's present turn for the check of batches."""


class WithColdReads(Protocol):
    """Reads of logs that wait for the disk."""

    @property
    def cold_reads(self) -> ColdReads:
        """The reads of logs that run in threads, and the look-ups that are under way."""


class WithCompactor(Protocol):
    """The compaction of logs."""

    @property
    def compactor(self) -> Compactor:
        """The compactor, which checks the logs that it compacts."""


class WithConfig(Protocol):
    """The broker's settings."""

    @property
    def config(self) -> BrokerConfig:
        """The settings as they are now: another object after each change of a dynamic setting."""


class WithControls(Protocol):
    """The controller in the same process."""

    @property
    def controls(self) -> bool:
        """Whether this process is the active controller."""


class WithElections(Protocol):
    """The counts of elections."""

    @property
    def elections(self) -> ElectionCounts:
        """The elections that the metadata showed while this process was the active controller."""


class WithEncodedTopics(Protocol):
    """The topics in encoded form, for responses to Metadata."""

    @property
    def encoded_topics(self) -> EncodedTopics:
        """The encoded topics, which are kept from one response to the next."""


class WithFailedRequests(Protocol):
    """The counts of batches and partitions that were refused."""

    @property
    def failed_requests(self) -> FailedRequests:
        """The counts of refused batches (Produce) and refused partitions (Fetch)."""


class WithFetchSessions(Protocol):
    """The incremental fetch sessions."""

    @property
    def fetch_sessions(self) -> FetchSessionCache:
        """The sessions of consumers and of followers."""


class WithFollower(Protocol):
    """The follower of the metadata, which applies changes and lets tasks wait for them."""

    @property
    def follower(self) -> Follower:
        """The follower, which calls its listeners for each change."""


class WithFollowersFetches(Protocol):
    """The leaders' side of replication, which counts and limits what followers fetch."""

    replication_bytes_out: int
    """How many bytes of batches were sent to followers. Fetch counts them."""

    @property
    def leader_throttle(self) -> ReplicationThrottle:
        """The limit of the rate at which throttled replicas are sent to followers."""


class WithGroups(Protocol):
    """The groups of consumers."""

    @property
    def groups(self) -> GroupService:
        """The coordinator of the groups."""


class WithId(Protocol):
    """The broker's id."""

    @property
    def id(self) -> int:
        """Kafka's `node.id`."""


class WithImage(Protocol):
    """The metadata."""

    @property
    def image(self) -> Image:
        """The metadata as this process has applied it: another object after each change."""


class WithIntents(Protocol):
    """The writes of administrators to the metadata."""

    @property
    def intents(self) -> Intents:
        """The functions that write topics, settings, quotas, reassignments and requests for elections to the
        metadata."""


class WithInternalTopics(Protocol):
    """The creation of internal topics."""

    @property
    def internal_topics(self) -> InternalTopics:
        """The attempts to create internal topics."""


class WithIsrChanges(Protocol):
    """A leader's changes of its ISRs."""

    @property
    def isr_changes(self) -> IsrChanges:
        """The changes of the ISRs of all partitions that this broker leads."""


class WithLogins(Protocol):
    """The logins of clients."""

    @property
    def logins(self) -> Logins:
        """The logins at all listeners, with their counts."""


class WithLogs(Protocol):
    """The log directories."""

    @property
    def logs(self) -> LogDirectories:
        """The log directories, with the logs in them."""


class WithLoopLag(Protocol):
    """The measurement of the event loop."""

    @property
    def loop_lag(self) -> LoopLag:
        """The loop's lag and idle time."""


class WithMarkerLog(Protocol):
    """The markers of transactions in the partitions that this broker leads."""

    @property
    def marker_log(self) -> MarkerLog:
        """The part that appends markers."""


class WithMembership(Protocol):
    """The broker's membership in its cluster."""

    @property
    def membership(self) -> Membership:
        """The membership: the registration in the metadata store, and whether the store still confirms it."""


class WithMoves(Protocol):
    """The moves of replicas between the log directories of this broker."""

    @property
    def moves(self) -> DirectoryMoves:
        """The part that begins moves, and has the moves under way."""


class WithPartitions(Protocol):
    """The replicas that this broker holds."""

    @property
    def partitions(self) -> PartitionTable:
        """The replicas by topic and partition."""


class WithProducerIds(Protocol):
    """The ids for idempotent producers."""

    @property
    def producer_ids(self) -> ProducerIdSource:
        """The source of new producer ids."""


class WithReadiness(Protocol):
    """The readiness of the broker for clients."""

    @property
    def readiness(self) -> Readiness:
        """Whether clients can be served, and the reason why not."""


class WithReplicas(Protocol):
    """The part of the broker that creates, moves and removes replicas as the metadata says."""

    @property
    def replicas(self) -> Replicas:
        """The broker's `Replicas`, which know the topics' settings."""


class WithReplication(Protocol):
    """The followers' side of replication."""

    @property
    def replication(self) -> Replication:
        """The copying of partitions from leaders on other brokers."""


class WithReplicationBytesOut(Protocol):
    """The traffic to followers."""

    @property
    def replication_bytes_out(self) -> int:
        """How many bytes of batches were sent to followers."""


class WithRequestCounters(Protocol):
    """The counts of requests."""

    @property
    def request_counters(self) -> Mapping[str, ApiCounters]:
        """The counters of each served API, by Kafka's name of the API, such as ListOffsets."""


class WithServer(Protocol):
    """The server for Kafka's protocol."""

    @property
    def server(self) -> Server:
        """The server, with its listeners, its connections and the memory that the connections hold."""


class WithStore(Protocol):
    """The metadata store."""

    @property
    def store(self) -> Store:
        """The store that the broker registers in."""


class WithTasks(Protocol):
    """The tasks of the broker, which end when the broker stops."""

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str | None = None) -> asyncio.Task[Any]:
        """Runs a coroutine in a task, which is cancelled when the broker stops. A failure is logged."""


class WithThrottling(Protocol):
    """The quotas of clients."""

    @property
    def throttling(self) -> Throttling:
        """The part that charges requests to their clients, and has the measurements."""


class WithTls(Protocol):
    """TLS of the listeners."""

    @property
    def tls(self) -> TlsListeners:
        """The certificates of all encrypted listeners."""


class WithTopicCounters(Protocol):
    """The counts of the traffic of topics."""

    @property
    def counters(self) -> Mapping[str, TopicCounters]:
        """The counters of produced and fetched records, by topic."""


class WithTokens(Protocol):
    """The delegation tokens."""

    @property
    def tokens(self) -> TokenService:
        """The part that answers requests about delegation tokens."""


class WithTransactions(Protocol):
    """The transactions of producers."""

    @property
    def transactions(self) -> TransactionService:
        """The coordinator of the transactions."""


class WithVerifier(Protocol):
    """The check that a batch's partition belongs to a transaction (KIP-890): the transaction's coordinator is asked."""

    @property
    def verifier(self) -> TransactionVerifier:
        """The part that asks whether partitions belong to transactions."""

    @property
    def transactional_order(self) -> Order:
        """The connections with requests that wait for a transaction's coordinator."""
