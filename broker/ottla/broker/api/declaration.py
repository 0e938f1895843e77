"""The declaration of an API. Each API module declares the API that it serves.

A declaration names the rights that requests of the API need, or the reason why Kafka asks for none: one of the two is
required. Dispatch asks the authoriser (`authorizer.py`) about these rights before the handler gets a request.

A right names an operation and a type of resource. The topics, groups and transactional ids for which a request needs
the right are in its body. So handlers will ask about single names and refuse them one by one, as Kafka does. No handler
asks yet, because every operation is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kio.schema.index import api_key_map

from ottla.protocol.rights import Right

Response = Mapping[str, Any]
"""A handler's answer, in the shape of the API's response schema."""


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
    need, and its differences from Kafka. Raises ValueError where no right is named and no reason is given.

    `needs` has every right that Kafka asks for in some request of the API. A single request may need fewer of them: one
    of two (CREATE on the topic or on the cluster), or a right that only some clients need (CLUSTER_ACTION for followers
    that fetch).
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
        """The API's name in snake case: Kafka's, as kio spells it, or the `own_name`."""
        return self.own_name or api_key_map[self.key]

    def serves(self, version: int) -> bool:
        """Whether requests of this version are served."""
        lowest, highest = self.served or self.versions
        return lowest <= version <= highest
