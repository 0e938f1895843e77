"""Reads and changes ACLs, quotas and passwords, by Kafka's admin protocol over the connection of a `KafkaAdmin`.

One look reads those of all users with three requests, however many users there are. Changes are made in batches. A
method that changes something returns for each item the broker's refusal, or None if the change was made. A password is
salted here, so brokers never get it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ottla.net.admin import refusal
from ottla.operator.kafka import KafkaAdmin, Unreachable, slices
from ottla.operator.plan.user import KafkaUsers, Quotas, by_principal
from ottla.protocol.acls import ANY, AclBinding, PatternType, Permission
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType
from ottla.protocol.sasl import SCRAM_SHA_512
from ottla.security.scram import salted_password

DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS = (29, 3), (30, 3), (31, 3)
DESCRIBE_QUOTAS, ALTER_QUOTAS = (48, 1), (49, 1)
DESCRIBE_PASSWORDS, ALTER_PASSWORDS = (50, 0), (51, 0)
ITERATIONS = 8192  # those of `ottla users`, so that the credentials of all users look alike
SALT_BYTES = 24
CHANGED_AT_ONCE = 100
_MECHANISM = 2  # SCRAM-SHA-512, in Kafka's ScramMechanism
_SPECIFIED = 2  # a filter of quotas that chooses every entity with a name
_USER = "user"


@dataclass(frozen=True, slots=True)
class NewPassword:
    """A user's new password, salted."""

    name: str
    salt: bytes = field(repr=False)
    salted: bytes = field(repr=False)


def new_password(name: str, password: str, salt: bytes) -> NewPassword:
    """Salts a password, which takes some milliseconds of CPU; `salt` is random."""
    return NewPassword(name, salt, salted_password(SCRAM_SHA_512, password, salt, ITERATIONS))


async def look(admin: KafkaAdmin) -> KafkaUsers:
    """The ACLs, quotas and passwords of all users. Raises Unreachable, also if the brokers refuse to tell them."""
    return KafkaUsers(await _acls(admin), await _quotas(admin), await _passwords(admin))


async def create_acls(admin: KafkaAdmin, bindings: Iterable[AclBinding]) -> dict[AclBinding, KafkaError | None]:
    """Creates ACLs."""
    done: dict[AclBinding, KafkaError | None] = {}
    for some in slices(sorted(bindings), CHANGED_AT_ONCE):
        creations = [
            {
                "resource_type": each.resource_type,
                "resource_name": each.name,
                "resource_pattern_type": each.pattern_type,
                "principal": each.principal,
                "host": each.host,
                "operation": each.operation,
                "permission_type": each.permission,
            }
            for each in some
        ]
        answer = await admin.send(CREATE_ACLS, {"creations": creations})
        done.update(zip(some, map(refusal, answer.results), strict=True))
    return done


async def delete_acls(admin: KafkaAdmin, bindings: Iterable[AclBinding]) -> dict[AclBinding, KafkaError | None]:
    """Deletes ACLs; an ACL that isn't there any more counts as deleted."""
    done: dict[AclBinding, KafkaError | None] = {}
    for some in slices(sorted(bindings), CHANGED_AT_ONCE):
        filters = [
            {
                "resource_type_filter": each.resource_type,
                "resource_name_filter": each.name,
                "pattern_type_filter": each.pattern_type,
                "principal_filter": each.principal,
                "host_filter": each.host,
                "operation": each.operation,
                "permission_type": each.permission,
            }
            for each in some
        ]
        answer = await admin.send(DELETE_ACLS, {"filters": filters})
        done.update(zip(some, map(refusal, answer.filter_results), strict=True))
    return done


async def set_quotas(admin: KafkaAdmin, changes: Sequence[Quotas]) -> dict[str, KafkaError | None]:
    """Sets and removes limits; of each user either all changes are made or none."""
    done: dict[str, KafkaError | None] = {}
    for some in slices(changes, CHANGED_AT_ONCE):
        entries = [
            {
                "entity": [{"entity_type": _USER, "entity_name": each.name}],
                "ops": [
                    {"key": key, "value": 0.0 if limit is None else limit, "remove": limit is None}
                    for key, limit in each.limits
                ],
            }
            for each in some
        ]
        answer = await admin.send(ALTER_QUOTAS, {"entries": entries, "validate_only": False})
        done.update((str(entry.entity[0].entity_name), refusal(entry)) for entry in answer.entries)
    return done


async def set_passwords(admin: KafkaAdmin, passwords: Sequence[NewPassword]) -> dict[str, KafkaError | None]:
    """Gives users other passwords, or their first ones."""
    done: dict[str, KafkaError | None] = {}
    for some in slices(passwords, CHANGED_AT_ONCE):
        upsertions = [
            {
                "name": each.name,
                "mechanism": _MECHANISM,
                "iterations": ITERATIONS,
                "salt": each.salt,
                "salted_password": each.salted,
            }
            for each in some
        ]
        done |= await _alter_passwords(admin, {"deletions": [], "upsertions": upsertions})
    return done


async def drop_passwords(admin: KafkaAdmin, names: Sequence[str]) -> dict[str, KafkaError | None]:
    """Removes users' passwords; a password that isn't there any more counts as removed."""
    done: dict[str, KafkaError | None] = {}
    for some in slices(names, CHANGED_AT_ONCE):
        deletions = [{"name": name, "mechanism": _MECHANISM} for name in some]
        answered = await _alter_passwords(admin, {"deletions": deletions, "upsertions": []})
        for name, refused in answered.items():
            gone = refused is not None and refused.code == ErrorCode.resource_not_found
            done[name] = None if gone else refused
    return done


async def _alter_passwords(admin: KafkaAdmin, message: Mapping[str, Any]) -> dict[str, KafkaError | None]:
    answer = await admin.send(ALTER_PASSWORDS, message)
    return {str(result.user): refusal(result) for result in answer.results}


async def _acls(admin: KafkaAdmin) -> dict[str, frozenset[AclBinding]] | None:
    everything = {
        "resource_type_filter": ANY,
        "resource_name_filter": None,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    }
    answer = await admin.send(DESCRIBE_ACLS, everything)
    if answer.error_code == ErrorCode.security_disabled:
        return None
    _check(answer, "ACLs")
    return by_principal(
        AclBinding(
            ResourceType(resource.resource_type),
            PatternType(resource.pattern_type),
            resource.resource_name,
            acl.principal,
            acl.host,
            AclOperation(acl.operation),
            Permission(acl.permission_type),
        )
        for resource in answer.resources
        for acl in resource.acls
    )


async def _quotas(admin: KafkaAdmin) -> dict[str, dict[str, float]]:
    users = {"entity_type": _USER, "match_type": _SPECIFIED, "match": None}
    answer = await admin.send(DESCRIBE_QUOTAS, {"components": [users], "strict": True})
    _check(answer, "quotas")
    return {
        str(entry.entity[0].entity_name): {str(value.key): float(value.value) for value in entry.values}
        for entry in answer.entries or ()
    }


async def _passwords(admin: KafkaAdmin) -> frozenset[str]:
    answer = await admin.send(DESCRIBE_PASSWORDS, {"users": None})
    _check(answer, "users")
    return frozenset(
        str(result.user)
        for result in answer.results
        if any(info.mechanism == _MECHANISM for info in result.credential_infos)
    )


def _check(answer: Any, what: str) -> None:
    """Raises Unreachable if the broker refuses to tell what it was asked for."""
    if (refused := refusal(answer)) is not None:
        raise Unreachable(f"the {what} can't be read: {refused.message or refused.code.name}")
