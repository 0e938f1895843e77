"""The processes that are alive: the brokers' registrations, and the controller. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from ottla.metadata.features import SUPPORTED, LevelRange
from ottla.metadata.identities import BY_NUMBER
from ottla.metadata.store import Entry

from . import value
from .value import FORMAT_FIRST, Value

NO_BROKER = -1
NO_EPOCH = -1


class BrokerState(enum.Enum):
    """The state of a registered broker. Only a running broker can be elected or join an ISR."""

    STARTING = "starting"  # recovering its logs: neither elected nor admitted to an ISR
    RUNNING = "running"
    DRAINING = "draining"  # handing over before it stops: neither elected nor admitted to an ISR


class Endpoint(NamedTuple):
    """The address that a broker advertises for one of its listeners."""

    listener: str
    host: str
    port: int
    protocol: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class Broker(Value):
    """A broker's registration, which exists as long as its lease does.

    `epoch` is the revision that created the registration, so each registration has a greater epoch than all earlier
    ones. `revision` is the revision of the last change of the broker's state or addresses. `previous_epoch` is the
    epoch of the previous registration, if the broker's logs have lost nothing since then: either that registration
    ended with a clean stop, or the same process registered anew. Otherwise it is NO_EPOCH. `features` are the levels
    of features that the broker supports. The field is empty for a version of Ottla that doesn't say what it supports.
    """

    id: int
    epoch: int
    endpoints: Mapping[str, Endpoint]  # by listener name
    rack: str | None = None
    state: BrokerState = BrokerState.STARTING
    incarnation: str = ""  # a random text by which a process recognises its own registration
    host: str = ""  # where the process runs, for people
    format_max: int = field(default_factory=lambda: value.FORMAT_MAX)
    previous_epoch: int = NO_EPOCH
    features: Mapping[str, LevelRange] = field(default_factory=lambda: SUPPORTED)
    revision: int = 0

    @property
    def electable(self) -> bool:
        """Whether the broker may lead partitions and may join an ISR."""
        return self.state is BrokerState.RUNNING

    def holds_all_since(self, epoch: int) -> bool:
        """Whether the broker's logs have every record that they had under registration `epoch`, because the broker
        hasn't stopped uncleanly since.
        """
        return epoch != NO_EPOCH and epoch in (self.epoch, self.previous_epoch)

    def _fields(self) -> dict[str, Any]:
        return {
            "endpoints": [list(endpoint) for endpoint in self.endpoints.values()],
            "rack": self.rack,
            "state": self.state.value,
            "incarnation": self.incarnation,
            "host": self.host,
            "format_max": self.format_max,
            "previous_epoch": self.previous_epoch,
            "features": self.features,
        }

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        pop = document.pop
        endpoints = [Endpoint(*parts) for parts in pop("endpoints")]
        return cls(
            id=BY_NUMBER.of(entry.key),
            epoch=entry.create_revision,
            endpoints={endpoint.listener: endpoint for endpoint in endpoints},
            rack=pop("rack", None),
            state=BrokerState(pop("state")),
            incarnation=pop("incarnation", ""),
            host=pop("host", ""),
            format_max=pop("format_max", FORMAT_FIRST),
            previous_epoch=pop("previous_epoch", NO_EPOCH),
            features=_ranges(pop("features", {})),
            revision=entry.mod_revision,
            format=version,
            unknown=document,
        )


@dataclass(frozen=True, slots=True)
class ControllerHolder(Value):
    """The process that is the controller: the key of this value is attached to its lease.

    `broker_id` is the id of the broker in the same process. A controller without a broker has an id of its own below
    NO_BROKER instead, and `host` and `port` are the address at which its process listens. `features` has the same
    meaning as that of a `Broker`.
    """

    name: str
    broker_id: int = NO_BROKER
    revision: int = 0
    host: str = ""
    port: int = 0
    features: Mapping[str, LevelRange] = field(default_factory=lambda: SUPPORTED)

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"name": self.name, "broker_id": self.broker_id, "features": self.features}
        if self.host:
            fields |= {"host": self.host, "port": self.port}
        return fields

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        pop = document.pop
        name, broker_id, revision = pop("name", ""), pop("broker_id", NO_BROKER), entry.mod_revision
        host, port, features = pop("host", ""), pop("port", 0), _ranges(pop("features", {}))
        return cls(name, broker_id, revision, host, port, features, format=version, unknown=document)


def _ranges(ends: Mapping[str, tuple[int, int]]) -> dict[str, LevelRange]:
    return {name: LevelRange(*both) for name, both in ends.items()}
