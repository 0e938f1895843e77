"""Applies edits to a resource's dynamic settings. Pure.

Source: KIP-339 and Apache Kafka 4.3's ConfigurationControlManager. A value is kept as the text that the request has.
All resulting settings are checked, not only the changed ones. If a resource has no value of its own for a list, APPEND
and SUBTRACT start from the value that the resource inherits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.settings.catalogue import CLIENT_METRICS, GROUP, TOPIC
from ottla.settings.config import BrokerConfig
from ottla.settings.resource_checks import check_broker, check_client_metrics, check_group, check_topic
from ottla.settings.setting import Kind, Setting, format_value
from ottla.settings.sources import known_setting

Entries = Mapping[str, str]


class Operation(IntEnum):
    """The kinds of changes of one setting. The numbers are those of Kafka's AlterConfigOp.OpType."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Edit(NamedTuple):
    """A change of one setting. The value of a DELETE has no meaning."""

    name: str
    operation: int
    value: str | None


class Resource(NamedTuple):
    """A resource with settings: its type, as the metadata names it, and its name. An empty name means all brokers."""

    type: str
    name: str


def altered(config: BrokerConfig, resource: Resource, present: Entries, edits: Sequence[Edit]) -> dict[str, str]:
    """The settings after the edits. Raises KafkaError if an edit can't be made or the result is invalid."""
    if len({edit.name for edit in edits}) != len(edits):
        raise KafkaError(ErrorCode.invalid_request, "Error due to duplicate config keys")
    nameless = [edit.name for edit in edits if edit.value is None and edit.operation != Operation.DELETE]
    if nameless:
        raise KafkaError(ErrorCode.invalid_request, f"Null value not supported for : {','.join(nameless)}")
    entries = dict(present)
    for edit in edits:
        _apply(config, resource.type, entries, edit)
    check(config, resource, entries)
    return entries


def check(config: BrokerConfig, resource: Resource, entries: Entries) -> None:
    """Raises KafkaError unless a resource can have these settings."""
    if resource.type == "topic":
        check_topic(config, entries)
    elif resource.type == "broker":
        check_broker(config, entries, per_broker=bool(resource.name))
    elif resource.type == "group":
        check_group(config, entries)
    else:
        check_client_metrics(entries)


def _apply(config: BrokerConfig, resource_type: str, entries: dict[str, str], edit: Edit) -> None:
    if edit.operation == Operation.DELETE:
        entries.pop(edit.name, None)
        return
    assert edit.value is not None
    if edit.operation == Operation.SET:
        entries[edit.name] = edit.value
        return
    if edit.operation not in (Operation.APPEND, Operation.SUBTRACT):
        raise KafkaError(ErrorCode.invalid_request, f"Unknown operation type {edit.operation}")
    operation = Operation(edit.operation)
    setting = _LOOKUPS[resource_type](edit.name)
    if setting is None or setting.kind is not Kind.LIST:
        message = f"Can't {operation.name} to key {edit.name} because its type is not LIST."
        raise KafkaError(ErrorCode.invalid_config, message)
    members = _parts(entries[edit.name] if edit.name in entries else _in_force(config, resource_type, setting))
    for part in _parts(edit.value):
        if operation is Operation.SUBTRACT and part in members:
            members.remove(part)
        elif operation is Operation.APPEND and part not in members:
            members.append(part)
    entries[edit.name] = ",".join(members)


def _in_force(config: BrokerConfig, resource_type: str, setting: Setting) -> str:
    if resource_type == "topic":
        return format_value(config.topic_defaults[setting.name]) or ""
    if resource_type == "broker":
        return format_value(config[setting.name]) or ""
    return setting.default or ""


def _parts(text: str) -> list[str]:
    return [part for part in (part.strip() for part in text.split(",")) if part]


_LOOKUPS: dict[str, Callable[[str], Setting | None]] = {
    "topic": TOPIC.get,
    "broker": known_setting,
    "group": GROUP.get,
    "client-metrics": CLIENT_METRICS.get,
}
