"""The declaration of an API. Each API module declares the API that it serves.

A declaration names the rights that requests of the API need, or the reason why Kafka asks for none: one of the two is
required. A right names an operation and a type of resource.

If an API needs a right on the cluster alone, dispatch asks the authorizer (`authorizer.py`) before the handler gets a
request, and answers the request by the API's `refuse` where the client doesn't have the right. The topics, groups and
transactional ids for which a request needs a right are in its body. So the handlers of all other APIs ask the
authorizer about single names, before they look for what has the name, and refuse names one by one, as Kafka does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kio.schema.index import api_key_map

from ottla.protocol.rights import ResourceType, Right

Response = Mapping[str, Any]
"""A handler's answer, in the shape of the API's response schema."""


Refuse = Callable[[int, Any], Response]
"""Makes the answer to a request, from its version and its decoded body, for a client without the right to it."""


@dataclass(frozen=True, slots=True)
class NoRightNeeded:
    """The declaration of an API for which Kafka asks for no right, in place of rights; `reason` says why."""

    reason: str

    def __post_init__(self) -> None:
        if not self.reason:
            raise ValueError("an API that needs no right has to say why")


@dataclass(frozen=True, slots=True)
class Api:
    """One API: its key, the lowest and the highest version that it is advertised with, the rights that its requests
    need, and its differences from Kafka. Raises ValueError where no right is named and no reason is given, and where a
    right on the cluster alone is named without a refusal, or the reverse.

    `needs` has every right that Kafka asks for in some request of the API. A single request may need fewer of them: one
    of two (CREATE on the topic or on the cluster), or a right that only some clients need (CLUSTER_ACTION for followers
    that fetch).
    `served` differs from `versions` only where Kafka advertises versions that it refuses (Produce 0–2, KAFKA-18659).
    An API that `changes_metadata` is answered when every live broker has applied the change (`applied_revisions.py`).
    `refuse` makes the answer to a client that has none of the rights, which are then all rights on the cluster.
    An API with an `own_name` isn't Kafka's: only brokers send its requests, and it isn't advertised to clients.
    """

    key: int
    versions: tuple[int, int]
    needs: tuple[Right, ...] | NoRightNeeded
    gaps: tuple[str, ...] = ()
    served: tuple[int, int] | None = None
    changes_metadata: bool = False
    own_name: str = ""
    refuse: Refuse | None = None

    def __post_init__(self) -> None:
        if not self.needs:
            raise ValueError(f"API {self.key} names neither the rights that it needs nor why it needs none")
        on_cluster = bool(self.rights) and all(right.resource_type is ResourceType.CLUSTER for right in self.rights)
        if on_cluster != (self.refuse is not None) and not self.own_name:
            raise ValueError(f"API {self.key} needs a refusal if and only if its rights are on the cluster alone")

    @property
    def rights(self) -> tuple[Right, ...]:
        """The rights that the API needs; empty where Kafka asks for none."""
        return () if isinstance(self.needs, NoRightNeeded) else self.needs

    @property
    def name(self) -> str:
        """The API's name in snake case: Kafka's, as kio spells it, or the `own_name`."""
        return self.own_name or api_key_map[self.key]

    def serves(self, version: int) -> bool:
        """Whether requests of this version are served."""
        lowest, highest = self.served or self.versions
        return lowest <= version <= highest
