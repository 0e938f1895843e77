"""Client quotas: the limits that each kind of entity may have, and filters that select entities. Pure.

Source: KIP-546 and Apache Kafka 4.3's ClientQuotaControlManager and ClientQuotasImage. The errors' texts and codes are
Kafka's, because admin tools show them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.settings.setting import Kind

USER, CLIENT_ID, IP = "user", "client-id", "ip"
_CLIENT_QUOTAS = {
    "producer_byte_rate": Kind.LONG,
    "consumer_byte_rate": Kind.LONG,
    "request_percentage": Kind.DOUBLE,
    "controller_mutation_rate": Kind.DOUBLE,
}
_IP_QUOTAS = {"connection_creation_rate": Kind.INT}
_WHOLE_BITS = {Kind.INT: 31, Kind.LONG: 63}

Entity = tuple[tuple[str, str | None], ...]
"""Sorted pairs of entity type and name; the name None stands for the default of its type."""


class Limit(NamedTuple):
    """A change of one limit. The value None removes the limit."""

    key: str
    value: float | None


class Match(IntEnum):
    """How a filter's component matches a name; the numbers are Kafka's."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


class Component(NamedTuple):
    """One condition of a filter."""

    entity_type: str
    match: int
    name: str | None


def check_entity(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """The entity with these parts (type, name). Raises KafkaError(invalid_request) if they can't form an entity."""
    entity = dict(parts)
    if not entity:
        raise _invalid("Invalid empty client quota entity")
    for entity_type, name in entity.items():
        if entity_type not in (USER, CLIENT_ID, IP):
            raise _invalid(f"Unhandled client quota entity type: {entity_type}")
        if name == "":
            raise _invalid(f"Empty {entity_type} not supported")
    if IP in entity and len(entity) > 1:
        raise _invalid("Invalid quota entity combination, IP entity should not be combined with User or ClientId")
    return tuple(sorted(entity.items()))


def altered_limits(entity: Entity, present: Mapping[str, float], changes: Iterable[Limit]) -> dict[str, float]:
    """The limits of an entity after the changes. Raises KafkaError(invalid_request) for a limit that the entity can't
    have."""
    known = _IP_QUOTAS if entity[0][0] == IP else _CLIENT_QUOTAS
    limits = dict(present)
    for key, value in changes:
        if value is None:
            limits.pop(key, None)
            continue
        if key not in known:
            raise _invalid(f"Invalid configuration key {key}")
        if not 0 < value < math.inf:
            raise _invalid(f"Quota {key} must be greater than 0")
        kind = known[key]
        if kind in _WHOLE_BITS:
            if value > 2.0 ** _WHOLE_BITS[kind] - 1:
                type_name = "an INT" if kind is Kind.INT else "a LONG"
                raise _invalid(f"Proposed value for {key} is too large for {type_name}.")
            if not math.isclose(value, round(value), rel_tol=0, abs_tol=1e-6):
                raise _invalid(f"{key} cannot be a fractional value.")
        limits[key] = value
    return limits


def matching(entities: Iterable[Entity], components: Iterable[Component], strict: bool) -> list[Entity]:
    """The entities that meet every condition. With `strict`, an entity is left out if no condition is about the type
    of one of its parts.

    Raises KafkaError for an invalid filter.
    """
    exact, specified = _conditions(components)
    found = []
    for entity in entities:
        parts = dict(entity)
        if strict and len(parts) != len(exact) + len(specified):
            continue
        if all(kind in parts and parts[kind] == name for kind, name in exact.items()) and specified <= parts.keys():
            found.append(entity)
    return found


def _conditions(components: Iterable[Component]) -> tuple[dict[str, str | None], set[str]]:
    exact: dict[str, str | None] = {}
    specified: set[str] = set()
    for component in components:
        kind = component.entity_type
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in exact or kind in specified:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in (USER, CLIENT_ID, IP):
            raise KafkaError(ErrorCode.unsupported_version, f"Unsupported entity type {kind}")
        if component.match not in list(Match):
            raise _invalid(f"Unknown match type {component.match}")
        match = Match(component.match)
        if match is Match.EXACT and component.name is None:
            raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        if match is not Match.EXACT and component.name is not None:
            raise _invalid(f"Request specified MATCH_TYPE_{match.name}, but also specified a match string.")
        if match is Match.SPECIFIED:
            specified.add(kind)
        else:
            exact[kind] = component.name
    kinds = exact.keys() | specified
    if IP in kinds and len(kinds) > 1:
        raise _invalid(
            "Invalid entity filter component combination. "
            "IP filter component should not be used with user or clientId filter component."
        )
    return exact, specified


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, message)
