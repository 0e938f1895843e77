"""The APIs that this broker serves. ApiVersions advertises the APIs of Kafka's that have a handler here, no others.

Each of `MODULES` is one API: Kafka's, or Ottla's own for requests between brokers. It defines

    API = Api(key=…, versions=(lowest, highest), needs=(Right(…), …), gaps=(…))
    async def handle(broker, request, body) -> dict        # most APIs: a decoded body in, a plain dict out, in a task
    def handle(broker, request, body) -> Future[dict]      # APIs that await one future at most: without a task
    def serve(broker, request, frame, position, end) -> Reply   # the hot APIs: bytes in, bytes out, no task

`docs/compatibility.md` is generated from this table.

Each row names the rights that requests of its API need, and dispatch asks the authoriser (`authorizer.py`) before the
handler gets a request. A row without rights can't be made: where Kafka asks for none, the row gives the reason. A right
names an operation and a type of resource. The topics, groups and transactional ids for which a request needs a right
are in its body, so handlers will ask about single names, and refuse them one by one as Kafka does. No handler asks yet,
since everything is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kio.schema.index import api_key_map

from ottla.broker.request import Request
from ottla.protocol.received import Memory
from ottla.protocol.rights import Right

if TYPE_CHECKING:
    import asyncio

    from ottla.broker.node import Broker
    from ottla.net.server import Reply

MODULES = (
    "produce",
    "fetch",
    "list_offsets",
    "metadata",
    "offset_commit",
    "offset_fetch",
    "find_coordinator",
    "join_group",
    "heartbeat",
    "leave_group",
    "sync_group",
    "describe_groups",
    "list_groups",
    "api_versions",
    "create_topics",
    "delete_topics",
    "delete_records",
    "init_producer_id",
    "offset_for_leader_epoch",
    "describe_configs",
    "alter_configs",
    "alter_replica_log_dirs",
    "describe_log_dirs",
    "create_partitions",
    "delete_groups",
    "elect_leaders",
    "incremental_alter_configs",
    "alter_partition_reassignments",
    "list_partition_reassignments",
    "offset_delete",
    "describe_client_quotas",
    "alter_client_quotas",
    "describe_cluster",
    "describe_producers",
    "unregister_broker",
    "list_config_resources",
    "describe_topic_partitions",
    "await_revision",
)


@dataclass(frozen=True, slots=True)
class NoRightNeeded:
    """Stands in place of rights for an API for which Kafka asks for none; `reason` says why."""

    reason: str

    def __post_init__(self) -> None:
        if not self.reason:
            raise ValueError("an API that needs no right has to say why")


@dataclass(frozen=True, slots=True)
class Api:
    """One API: its key, the versions (inclusive) that it is advertised with, the rights that its requests need, and
    its differences from Kafka. Raises ValueError where no right is named and no reason is given.

    `needs` holds each right without which Kafka refuses something in some request of the API. A single request may need
    fewer: one of two (CREATE on the topic or on the cluster), or one for a certain kind of client (CLUSTER_ACTION for
    followers that fetch).
    `served` differs from `versions` only where Kafka advertises versions that it refuses (Produce 0–2, KAFKA-18659).
    An API that `changes_metadata` is answered when every live broker has applied the change (`applied_revisions.py`).
    An API with an `own_name` isn't Kafka's: only brokers send its requests, and it isn't advertised to clients.
    """

    key: int
    versions: tuple[int, int]
    needs: tuple[Right, ...] | NoRightNeeded
    gaps: tuple[str, ...] = ()
    served: tuple[int, int] | None = None
    changes_metadata: bool = False
    own_name: str = ""

    def __post_init__(self) -> None:
        if not self.needs:
            raise ValueError(f"API {self.key} names neither the rights that it needs nor why it needs none")

    @property
    def rights(self) -> tuple[Right, ...]:
        """The rights that the API needs; empty where Kafka asks for none."""
        return () if isinstance(self.needs, NoRightNeeded) else self.needs

    @property
    def name(self) -> str:
        """Kafka's name in snake case, as in kio."""
        return self.own_name or api_key_map[self.key]

    def serves(self, version: int) -> bool:
        """Whether a request of this version gets a real answer."""
        lowest, highest = self.served or self.versions
        return lowest <= version <= highest


Response = Mapping[str, Any]
Handler = Callable[["Broker", Request, Any], Coroutine[Any, Any, Response]]
TasklessHandler = Callable[["Broker", Request, Any], "asyncio.Future[Response]"]
HotHandler = Callable[["Broker", Request, Memory, int, int], "Reply"]


@dataclass(frozen=True, slots=True)
class Route:
    """An API with its code: exactly one of `handle` and `serve`."""

    api: Api
    handle: Handler | TasklessHandler | None
    serve: HotHandler | None


def load_routes() -> dict[int, Route]:
    """Imports every API module; api key → route."""
    routes = {}
    for name in MODULES:
        module = import_module(f"ottla.broker.api.{name}")
        api: Api = module.API
        routes[api.key] = Route(api, getattr(module, "handle", None), getattr(module, "serve", None))
    return routes
