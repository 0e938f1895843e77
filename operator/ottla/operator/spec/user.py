"""A User resource as the operator reads it. Pure.

The schema and the rules of `crds/users.yaml` have refused most mistakes before, in the API server. This module checks
again what an older definition may have accepted. A refused resource is still a resource: it claims its principal, and
its status says what to change.

Names of fields follow Strimzi's KafkaUser.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import ip_address
from typing import Any, NamedTuple

from ottla.operator.objects import annotation
from ottla.operator.spec.of_cluster import OfCluster, common_fields
from ottla.protocol.acls import EVERY_HOST, EVERY_NAME, AclBinding, PatternType, Permission
from ottla.protocol.rights import CLUSTER_NAME, AclOperation, ResourceType, supported_operations

RENEW = "ottla.dev/force-renew"  # on a User: another value makes a new certificate or password
VALIDITY_DAYS = 365
RENEWAL_DAYS = 30
QUOTAS = {
    "producerByteRate": "producer_byte_rate",
    "consumerByteRate": "consumer_byte_rate",
    "requestPercentage": "request_percentage",
    "controllerMutationRate": "controller_mutation_rate",
}
"""Kafka's names of the quotas, by the names of their fields."""

OPERATIONS = {
    "All": AclOperation.ALL,
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Create": AclOperation.CREATE,
    "Delete": AclOperation.DELETE,
    "Alter": AclOperation.ALTER,
    "Describe": AclOperation.DESCRIBE,
    "ClusterAction": AclOperation.CLUSTER_ACTION,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
    "AlterConfigs": AclOperation.ALTER_CONFIGS,
    "IdempotentWrite": AclOperation.IDEMPOTENT_WRITE,
    "CreateTokens": AclOperation.CREATE_TOKENS,
    "DescribeTokens": AclOperation.DESCRIBE_TOKENS,
}
RESOURCES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "cluster": ResourceType.CLUSTER,
    "transactionalId": ResourceType.TRANSACTIONAL_ID,
    "delegationToken": ResourceType.DELEGATION_TOKEN,
    "user": ResourceType.USER,
}
_PATTERNS = {"literal": PatternType.LITERAL, "prefix": PatternType.PREFIXED}
_PERMISSIONS = {"allow": Permission.ALLOW, "deny": Permission.DENY}
# Characters that need no escape in a distinguished name, in JAAS and in SCRAM's messages. A certificate's common name
# has at most 64 of them.
_NAME = re.compile(r"[a-zA-Z0-9._@/-]{1,64}")
_FOREIGN_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,249}")


class Login(Enum):
    """How the user logs in: the types of `spec.authentication`."""

    TLS = "tls"  # by a certificate that the operator makes
    TLS_EXTERNAL = "tls-external"  # by a certificate that somebody else makes
    SCRAM = "scram-sha-512"  # by a password
    EXTERNAL = "external"  # in another way: OAuth, Kerberos, PLAIN

    @property
    def by_certificate(self) -> bool:
        """Whether the principal is the name in a certificate."""
        return self in (Login.TLS, Login.TLS_EXTERNAL)

    @property
    def has_secret(self) -> bool:
        """Whether the operator makes what the user logs in with."""
        return self in (Login.TLS, Login.SCRAM)


class PasswordSource(NamedTuple):
    """The Secret in the User's namespace, and the key in it, from which the password comes."""

    secret: str
    key: str


class Rule(NamedTuple):
    """An ACL without its principal."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str
    host: str
    operation: AclOperation
    permission: Permission

    def of(self, principal: str) -> AclBinding:
        """The ACL of a principal, such as `User:alice`."""
        return AclBinding(
            self.resource_type, self.pattern_type, self.name, principal, self.host, self.operation, self.permission
        )


@dataclass(frozen=True, slots=True)
class UserResource(OfCluster):
    """A User resource. `name` is the user's name in Kafka, without the `CN=` of a certificate."""

    name: str
    login: Login
    validity_days: int = VALIDITY_DAYS
    renewal_days: int = RENEWAL_DAYS
    password: PasswordSource | None = None
    rules: frozenset[Rule] = frozenset()
    quotas: Mapping[str, float] = field(default_factory=dict)  # by Kafka's names
    renew: str = ""  # the value of the annotation RENEW

    def __hash__(self) -> int:
        return hash(self.uid)

    @property
    def certified_name(self) -> str:
        """The distinguished name in the user's certificate."""
        return f"CN={self.name}"


class _Refused(Exception):
    """A part of the spec that can't be followed; the text says what to change."""


def parse_user(resource: Mapping[str, Any]) -> UserResource:
    """Reads a resource as the API server gives it. A spec that can't be followed raises nothing: see `refusal`."""
    common, spec, refusal = common_fields(resource), resource.get("spec") or {}, ""
    authentication = spec.get("authentication") or {}
    name, login = str(spec.get("name") or common["ref"].name), Login.EXTERNAL
    rules: frozenset[Rule] = frozenset()
    validity = authentication.get("validityDays") or VALIDITY_DAYS
    renewal = authentication.get("renewalDays") or RENEWAL_DAYS
    try:
        login = _login(authentication.get("type"))
        _check_name(name, login)
        if renewal >= validity:
            raise _Refused(
                "authentication.renewalDays has to be less than validityDays: lower the one or raise the other"
            )
        rules = frozenset(_rules((spec.get("authorization") or {}).get("acls") or ()))
    except _Refused as error:
        refusal = str(error)
    source = ((authentication.get("password") or {}).get("valueFrom") or {}).get("secretKeyRef")
    return UserResource(
        **common,
        name=name,
        login=login,
        validity_days=validity,
        renewal_days=renewal,
        password=PasswordSource(source["name"], source["key"]) if source else None,
        rules=rules,
        quotas={QUOTAS[field]: float(value) for field, value in (spec.get("quotas") or {}).items() if field in QUOTAS},
        renew=annotation(resource, RENEW),
        refusal=refusal,
    )


def _login(text: object) -> Login:
    try:
        return Login(text)
    except ValueError:
        raise _Refused(
            f"authentication.type is {text}: say one of {', '.join(login.value for login in Login)}"
        ) from None


def _check_name(name: str, login: Login) -> None:
    if name == EVERY_NAME:
        raise _Refused("name is '*', which stands for all users in ACLs: say the name of one user")
    if login is Login.EXTERNAL:
        if not _FOREIGN_NAME.fullmatch(name):
            raise _Refused("name has control characters or more than 249 characters: correct it")
    elif not _NAME.fullmatch(name):
        raise _Refused(
            f"'{name}' can't be the user's name: say a name of up to 64 letters, digits, '.', '_', '@', '/' and '-'"
        )


def _rules(acls: Any) -> set[Rule]:
    found = set()
    for acl in acls:
        kind, pattern, name = _resource(acl.get("resource") or {})
        host = acl.get("host") or EVERY_HOST
        _check_host(host)
        permission = _chosen(_PERMISSIONS, acl.get("type") or "allow", "acls[].type")
        for word in acl.get("operations") or ():
            operation = _chosen(OPERATIONS, word, "acls[].operations")
            if operation is not AclOperation.ALL and operation not in supported_operations(kind):
                raise _Refused(
                    f"authorization: a resource of the type {acl['resource']['type']} has no {word}: take it out"
                )
            found.add(Rule(kind, pattern, name, host, operation, permission))
    return found


def _resource(resource: Mapping[str, Any]) -> tuple[ResourceType, PatternType, str]:
    kind = _chosen(RESOURCES, resource.get("type"), "acls[].resource.type")
    pattern = _chosen(_PATTERNS, resource.get("patternType") or "literal", "acls[].resource.patternType")
    name = str(resource.get("name") or "")
    if kind is ResourceType.CLUSTER:
        return kind, PatternType.LITERAL, CLUSTER_NAME
    if not name:
        raise _Refused(
            f"authorization: a resource of the type {resource['type']} has no name: give it one, or '*' for all"
        )
    return kind, pattern, name


def _check_host(host: str) -> None:
    if host == EVERY_HOST:
        return
    try:
        ip_address(host)
    except ValueError:
        raise _Refused(
            f"authorization: the host '{host}' is no IP address: brokers compare hosts with addresses"
        ) from None


def _chosen(words: Mapping[str, Any], word: object, where: str) -> Any:
    if word not in words:
        raise _Refused(f"authorization.{where} is {word}: say one of {', '.join(words)}")
    return words[str(word)]
