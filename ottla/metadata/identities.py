"""Writes the identities of topics, partitions, brokers and others into the store's keys, and reads them back. Pure.

A key consists of the name of its kind, a slash, and the text of an identity. Each `Identity` is one form of that text;
its `of` takes the whole key. Topic ids are written as Kafka writes them: 22 characters of URL-safe base64. Names in
which any character is allowed are percent-encoded. A default entity or resource has no name, and is written as
`<default>`, which can't be an encoded name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, ParamSpec, TypeVar
from urllib.parse import quote, unquote
from uuid import UUID

from ottla.protocol.acls import AclBinding, PatternType, Permission
from ottla.protocol.rights import AclOperation, ResourceType
from ottla.uuids import uuid_from_text, uuid_text

P = ParamSpec("P")
T = TypeVar("T")

_DEFAULT = "<default>"

QuotaEntity = tuple[tuple[str, str | None], ...]  # sorted (entity type, name); name None = the default entity


class ConfigResource(NamedTuple):
    """A resource that has dynamic settings.

    `type` is "topic", "broker", "group" or "client-metrics". `name` "" is the default resource of the type.
    """

    type: str
    name: str


class Identity(Generic[P, T]):
    """One form in which identities, such as topic ids or broker ids, are written into the store's keys.

    `text` returns the part of a key that follows the kind's name and the slash. `of` reads the identity from a whole
    key, and raises ValueError if the key doesn't have this form.
    """

    __slots__ = ("of", "text")

    def __init__(self, text: Callable[P, str], of: Callable[[str], T]) -> None:
        self.text = text
        self.of = of


def _number_text(number: int) -> str:
    return str(number)


def _padded_text(number: int) -> str:
    return f"{number:08d}"


def _number(key: str) -> int:
    return int(_behind_kind(key))


def _name_text(name: str) -> str:
    return name


def _behind_kind(key: str) -> str:
    return key.partition("/")[2]


def _topic_id(key: str) -> UUID:
    return uuid_from_text(_behind_kind(key))


def _partition_text(topic_id: UUID, index: int) -> str:
    return f"{uuid_text(topic_id)}/{index}"


def _partition_id(key: str) -> tuple[UUID, int]:
    _, topic_text, index = key.split("/")
    return uuid_from_text(topic_text), int(index)


def _part_text(broker_id: int, part: int) -> str:
    return f"{broker_id}/{part}"


def _part(key: str) -> tuple[int, int]:
    _, broker_text, part = key.split("/")
    return int(broker_text), int(part)


def _resource_text(resource: ConfigResource) -> str:
    return f"{resource.type}/{_encoded(resource.name or None)}"


def _resource(key: str) -> ConfigResource:
    _, kind, name = key.split("/", 2)
    return ConfigResource(kind, _decoded(name) or "")


def _entity_text(entity: QuotaEntity) -> str:
    return ",".join(f"{kind}={_encoded(name)}" for kind, name in sorted(entity))


def _entity(key: str) -> QuotaEntity:
    pairs = (part.partition("=") for part in _behind_kind(key).split(","))
    return tuple(sorted((kind, _decoded(name)) for kind, _, name in pairs))


def _credential_text(user: str, mechanism: str) -> str:
    return f"{mechanism}/{quote(user, safe='')}"


def _credential(key: str) -> tuple[str, str]:
    _, mechanism, user = key.split("/")
    return unquote(user), mechanism


def _encoded(name: str | None) -> str:
    return _DEFAULT if name is None else quote(name, safe="")


def _decoded(text: str) -> str | None:
    return None if text == _DEFAULT else unquote(text)


def _acl_text(binding: AclBinding) -> str:
    kind, pattern, name, principal, host, operation, permission = binding
    first, last = f"{kind.name}/{pattern.name}".lower(), f"{operation.name}/{permission.name}".lower()
    return f"{first}/{_encoded(name)}/{_encoded(principal)}/{_encoded(host)}/{last}"


def _acl(key: str) -> AclBinding:
    _, kind, pattern, name, principal, host, operation, permission = key.split("/")
    return AclBinding(
        ResourceType[kind.upper()],
        PatternType[pattern.upper()],
        unquote(name),
        unquote(principal),
        unquote(host),
        AclOperation[operation.upper()],
        Permission[permission.upper()],
    )


BY_NUMBER = Identity(_number_text, _number)  # a broker's id
BY_PADDED_NUMBER = Identity(_padded_text, _number)  # eight digits, so that the keys' order is that of the numbers
BY_NAME = Identity(_name_text, _behind_kind)
BY_TOPIC_ID = Identity(uuid_text, _topic_id)
BY_PARTITION = Identity(_partition_text, _partition_id)  # (topic id, index)
BY_PART = Identity(_part_text, _part)  # (broker id, number of the part)
BY_RESOURCE = Identity(_resource_text, _resource)
BY_ENTITY = Identity(_entity_text, _entity)
BY_ACL = Identity(_acl_text, _acl)
BY_CREDENTIAL = Identity(_credential_text, _credential)  # (user, mechanism)
