"""The APIs that this broker serves. ApiVersions advertises Kafka's APIs that have a route here, and no others.

Each module that is imported here serves one API: an API of Kafka's, or Ottla's own API for requests between brokers.
The module defines

    API = Api(key=…, versions=(lowest, highest), needs=(Right(…), …), gaps=(…))
    class Parts(ports.WithImage, ports.WithIntents, Protocol): ...    # the ports that the handler uses (`ports.py`)

    # most APIs: a decoded body in, a plain dict out, in a task
    async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]
    # APIs that await one future at most: without a task
    def handle(broker: Parts, request: Request, body: Any) -> asyncio.Future[Response]
    # the hot APIs: bytes in, bytes out, without a task
    def serve(broker: Parts, request: Request, frame: Memory, position: int, end: int) -> Reply

A handler that uses a single port takes that port in place of `Parts`. The API's route says which of the three kinds of
handlers it has. mypy refuses a route whose handler asks for a port that isn't among `Ports`. In `node.py`, where the
broker is given to dispatch, mypy refuses a broker that lacks a member of `Ports`.

`docs/compatibility.md` is generated from this table.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ottla.broker import ports
from ottla.broker.api import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_user_scram_credentials,
    api_versions,
    await_revision,
    create_acls,
    create_delegation_token,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_delegation_token,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    expire_delegation_token,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    renew_delegation_token,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    update_features,
    write_txn_markers,
)
from ottla.broker.api.declaration import Api, Response
from ottla.broker.request import Request
from ottla.protocol.received import Memory

if TYPE_CHECKING:
    import asyncio

    from ottla.net.server import Reply


class Ports(
    ports.WithAdvertisedApis,
    ports.WithAppliedRevisions,
    ports.WithAuthorizer,
    ports.WithAwaitedElections,
    ports.WithBatchChecks,
    ports.WithColdReads,
    ports.WithCompactor,
    ports.WithConfig,
    ports.WithEncodedTopics,
    ports.WithFailedRequests,
    ports.WithFetchSessions,
    ports.WithFollower,
    ports.WithFollowersFetches,
    ports.WithGroups,
    ports.WithId,
    ports.WithImage,
    ports.WithIntents,
    ports.WithInternalTopics,
    ports.WithIsrChanges,
    ports.WithLogs,
    ports.WithMarkerLog,
    ports.WithMoves,
    ports.WithPartitions,
    ports.WithProducerIds,
    ports.WithReplication,
    ports.WithTasks,
    ports.WithTls,
    ports.WithTokens,
    ports.WithTransactions,
    ports.WithVerifier,
    Protocol,
):
    """The ports of all handlers together: dispatch hands the same broker to each of them."""


Handler = Callable[[Ports, Request, Any], Coroutine[Any, Any, Response]]
TasklessHandler = Callable[[Ports, Request, Any], "asyncio.Future[Response]"]
HotHandler = Callable[[Ports, Request, Memory, int, int], "Reply"]


@dataclass(frozen=True, slots=True)
class Route:
    """An API with its handler, which is exactly one of `handle` (called in a task), `taskless` (called without a task)
    and `serve` (hot). Raises ValueError otherwise."""

    api: Api
    handle: Handler | None = None
    taskless: TasklessHandler | None = None
    serve: HotHandler | None = None

    def __post_init__(self) -> None:
        if sum(way is not None for way in (self.handle, self.taskless, self.serve)) != 1:
            raise ValueError(f"API {self.api.key} needs exactly one of handle, taskless and serve")


ROUTES: Mapping[int, Route] = {
    route.api.key: route
    for route in (
        Route(produce.API, serve=produce.serve),
        Route(fetch.API, serve=fetch.serve),
        Route(list_offsets.API, list_offsets.handle),
        Route(metadata.API, metadata.handle),
        Route(offset_commit.API, offset_commit.handle),
        Route(offset_fetch.API, offset_fetch.handle),
        Route(find_coordinator.API, find_coordinator.handle),
        Route(join_group.API, taskless=join_group.handle),
        Route(heartbeat.API, taskless=heartbeat.handle),
        Route(leave_group.API, leave_group.handle),
        Route(sync_group.API, taskless=sync_group.handle),
        Route(describe_groups.API, describe_groups.handle),
        Route(list_groups.API, list_groups.handle),
        Route(sasl_handshake.API, taskless=sasl_handshake.handle),
        Route(api_versions.API, api_versions.handle),
        Route(create_topics.API, create_topics.handle),
        Route(delete_topics.API, delete_topics.handle),
        Route(delete_records.API, delete_records.handle),
        Route(init_producer_id.API, init_producer_id.handle),
        Route(txn_offset_commit.API, txn_offset_commit.handle),
        Route(write_txn_markers.API, write_txn_markers.handle),
        Route(list_transactions.API, list_transactions.handle),
        Route(end_txn.API, end_txn.handle),
        Route(describe_transactions.API, describe_transactions.handle),
        Route(add_partitions_to_txn.API, add_partitions_to_txn.handle),
        Route(add_offsets_to_txn.API, add_offsets_to_txn.handle),
        Route(offset_for_leader_epoch.API, offset_for_leader_epoch.handle),
        Route(describe_acls.API, describe_acls.handle),
        Route(create_acls.API, create_acls.handle),
        Route(delete_acls.API, delete_acls.handle),
        Route(describe_configs.API, describe_configs.handle),
        Route(alter_configs.API, alter_configs.handle),
        Route(alter_replica_log_dirs.API, alter_replica_log_dirs.handle),
        Route(describe_log_dirs.API, describe_log_dirs.handle),
        Route(sasl_authenticate.API, taskless=sasl_authenticate.handle),
        Route(create_partitions.API, create_partitions.handle),
        Route(create_delegation_token.API, create_delegation_token.handle),
        Route(renew_delegation_token.API, renew_delegation_token.handle),
        Route(expire_delegation_token.API, expire_delegation_token.handle),
        Route(describe_delegation_token.API, describe_delegation_token.handle),
        Route(delete_groups.API, delete_groups.handle),
        Route(elect_leaders.API, elect_leaders.handle),
        Route(incremental_alter_configs.API, incremental_alter_configs.handle),
        Route(alter_partition_reassignments.API, alter_partition_reassignments.handle),
        Route(list_partition_reassignments.API, list_partition_reassignments.handle),
        Route(offset_delete.API, offset_delete.handle),
        Route(describe_client_quotas.API, describe_client_quotas.handle),
        Route(alter_client_quotas.API, alter_client_quotas.handle),
        Route(describe_user_scram_credentials.API, describe_user_scram_credentials.handle),
        Route(alter_user_scram_credentials.API, alter_user_scram_credentials.handle),
        Route(describe_cluster.API, describe_cluster.handle),
        Route(describe_producers.API, describe_producers.handle),
        Route(unregister_broker.API, unregister_broker.handle),
        Route(update_features.API, update_features.handle),
        Route(list_config_resources.API, list_config_resources.handle),
        Route(describe_topic_partitions.API, describe_topic_partitions.handle),
        Route(await_revision.API, serve=await_revision.serve),
    )
}
"""The routes of all APIs, by the APIs' keys."""
