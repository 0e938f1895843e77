"""What to change in Kafka for a User: its ACLs, its quotas, its password. Pure.

All Users of a Cluster are compared with one look at the brokers (`KafkaUsers`). Of a principal everything is compared
that a User can say: ACLs and quotas that its User doesn't name are removed, also those that somebody else has made.
Other principals are never touched, nor are quotas of a user together with a client id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ottla.operator.spec.user import UserResource
from ottla.operator.spec.user_rules import principal_of
from ottla.protocol.acls import AclBinding


@dataclass(frozen=True, slots=True)
class KafkaUsers:
    """ACLs, quotas and passwords as the brokers have them. `acls` is None if the brokers have no authorizer."""

    acls: Mapping[str, frozenset[AclBinding]] | None  # by principal, such as `User:alice`
    quotas: Mapping[str, Mapping[str, float]]  # by the user's name: Kafka's names of the limits, and the limits
    passwords: frozenset[str]  # names of users that have a password for SCRAM-SHA-512


class Quotas(NamedTuple):
    """A change of a user's limits; None removes a limit."""

    name: str
    limits: tuple[tuple[str, float | None], ...]


@dataclass(frozen=True, slots=True)
class Rights:
    """The changes of one user's ACLs and quotas."""

    created: frozenset[AclBinding] = frozenset()
    deleted: frozenset[AclBinding] = frozenset()
    quotas: Quotas | None = None
    lacks_authorizer: bool = False  # ACLs are wanted, and the brokers have no authorizer

    def __bool__(self) -> bool:
        return bool(self.created or self.deleted or self.quotas)


def contest(names: Mapping[UserResource, Collection[str]]) -> dict[UserResource, UserResource]:
    """The User that each User yields to: itself if it has all its names, else the older User that has one of them.
    `names`: the names in Kafka of each User, without the Users that brokers would refuse. Of two Users with a common
    name the older one has it; of two that were made in one second, the one with the smaller uid."""
    owners: dict[str, UserResource] = {}
    winners = {}
    for resource in sorted(names, key=lambda each: (each.created, each.uid)):
        older = [owners[name] for name in sorted(names[resource]) if name in owners]
        winners[resource] = older[0] if older else resource
        if not older:
            owners |= dict.fromkeys(names[resource], resource)
    return winners


def rights(resource: UserResource, name: str, kafka: KafkaUsers) -> Rights:
    """The changes that give a user the ACLs and quotas of its User."""
    wanted = {rule.of(principal_of(name)) for rule in resource.rules}
    quotas = quota_changes(name, kafka.quotas.get(name, {}), resource.quotas)
    if kafka.acls is None:
        return Rights(quotas=quotas, lacks_authorizer=bool(wanted))
    present = kafka.acls.get(principal_of(name), frozenset())
    return Rights(frozenset(wanted - present), frozenset(present - wanted), quotas)


def no_rights(name: str, kafka: KafkaUsers) -> Rights:
    """The changes that take all ACLs and quotas from a user."""
    present = (kafka.acls or {}).get(principal_of(name), frozenset())
    return Rights(deleted=present, quotas=quota_changes(name, kafka.quotas.get(name, {}), {}))


def quota_changes(name: str, present: Mapping[str, float], wanted: Mapping[str, float]) -> Quotas | None:
    """The changes from one set of limits to the other; None where they are equal."""
    changes: list[tuple[str, float | None]] = [
        (key, limit) for key, limit in sorted(wanted.items()) if present.get(key) != limit
    ]
    changes += [(key, None) for key in sorted(present.keys() - wanted.keys())]
    return Quotas(name, tuple(changes)) if changes else None


def by_principal(bindings: Iterable[AclBinding]) -> dict[str, frozenset[AclBinding]]:
    """ACLs by their principals."""
    found: dict[str, set[AclBinding]] = {}
    for binding in bindings:
        found.setdefault(binding.principal, set()).add(binding)
    return {principal: frozenset(each) for principal, each in found.items()}
