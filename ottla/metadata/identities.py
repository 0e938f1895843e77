"""How the things that the metadata knows are named in keys: as text, and back. Pure.

Topic ids are written as Kafka writes them: 22 characters of URL-safe base64. Names in which any character is allowed
are percent-encoded. The default entity has no name, and is written as `<default>`, which no encoded name can be.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import lru_cache
from typing import Generic, NamedTuple, ParamSpec, TypeVar
from urllib.parse import quote, unquote
from uuid import UUID

_DEFAULT = "<default>"

QuotaEntity = tuple[tuple[str, str | None], ...]  # sorted (entity type, name); name None = the default entity

P = ParamSpec("P")
I = TypeVar("I")  # noqa: E741 (an identity)


class ConfigResource(NamedTuple):
    """A resource that has dynamic settings.

    `type` is "topic", "broker", "group" or "client-metrics". `name` "" is the default resource of the type.
    """

    type: str
    name: str


class Identity(Generic[P, I]):
    """One way to name things in keys: `text` makes the part of a key behind its first slash, `of` reads it from a key.
    `of` raises ValueError where the key isn't written in this way."""

    __slots__ = ("_read", "text")

    def __init__(self, text: Callable[P, str], read: Callable[[str], I]) -> None:
        self.text = text
        self._read = read

    def of(self, key: str) -> I:
        """The identity in a key."""
        return self._read(key.partition("/")[2])


def uuid_text(value: UUID) -> str:
    """A UUID as Kafka prints it."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


@lru_cache(maxsize=65536)
def uuid_from_text(text: str) -> UUID:
    """The UUID that Kafka prints as `text`. Raises ValueError."""
    raw = base64.urlsafe_b64decode(text + "==")
    if len(raw) != 16:
        raise ValueError(f"not a Kafka UUID: {text!r}")
    return UUID(bytes=raw)


def _number_text(number: int) -> str:
    return str(number)


def _row_text(row: int) -> str:
    return f"{row:08d}"


def _name(name: str) -> str:
    return name


def _partition_text(topic_id: UUID, index: int) -> str:
    return f"{uuid_text(topic_id)}/{index}"


def _read_partition(text: str) -> tuple[UUID, int]:
    topic, index = text.split("/")
    return uuid_from_text(topic), int(index)


def _part_text(broker_id: int, part: int) -> str:
    return f"{broker_id}/{part}"


def _read_part(text: str) -> tuple[int, int]:
    broker, part = text.split("/")
    return int(broker), int(part)


def _resource_text(resource: ConfigResource) -> str:
    return f"{resource.type}/{_encoded(resource.name or None)}"


def _read_resource(text: str) -> ConfigResource:
    kind, _, name = text.partition("/")
    return ConfigResource(kind, _decoded(name) or "")


def _entity_text(entity: QuotaEntity) -> str:
    return ",".join(f"{kind}={_encoded(name)}" for kind, name in sorted(entity))


def _read_entity(text: str) -> QuotaEntity:
    pairs = (part.partition("=") for part in text.split(","))
    return tuple(sorted((kind, _decoded(name)) for kind, _, name in pairs))


def _nothing_text() -> str:
    return ""


def _read_nothing(text: str) -> None:
    if text:
        raise ValueError(f"a single key has {text!r} behind its name")


def _encoded(name: str | None) -> str:
    return _DEFAULT if name is None else quote(name, safe="")


def _decoded(text: str) -> str | None:
    return None if text == _DEFAULT else unquote(text)


BY_NUMBER = Identity(_number_text, int)
BY_ROW = Identity(_row_text, int)
BY_NAME = Identity(_name, _name)
BY_TOPIC_ID = Identity(uuid_text, uuid_from_text)
BY_PARTITION = Identity(_partition_text, _read_partition)  # (topic id, index)
BY_PART = Identity(_part_text, _read_part)  # (broker id, part)
BY_RESOURCE = Identity(_resource_text, _read_resource)
BY_ENTITY = Identity(_entity_text, _read_entity)
SINGLE = Identity(_nothing_text, _read_nothing)  # there is only one key of the kind
