"""Functions that the APIs for configurations share: they check a resource's type and name, and change one resource
after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Protocol

from ottla.broker.api.refusals import refused
from ottla.broker.ports import WithAuthorizer, WithConfig, WithId, WithImage, WithIntents, WithTls
from ottla.broker.request import Request
from ottla.metadata.identities import ConfigResource
from ottla.metadata.naming import check_topic_name
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import CLUSTER_NAME, AclOperation, ResourceType
from ottla.security.listener_logins import login_problems
from ottla.security.tls_listeners import Prepared
from ottla.security.tls_settings import InvalidTls
from ottla.settings.alteration import Resource

Edit = Callable[[Resource, Mapping[str, str]], dict[str, str]]
"""Maps a resource and its present settings to its new settings; may raise KafkaError."""

Change = Callable[[int, str, Any], Awaitable[None]]
"""Makes a request's change to one resource, from its type, its name and the settings in the request."""


class ConfigResourceType(IntEnum):
    """The types of resources that have settings; the numbers are those of Kafka's ConfigResource.Type."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


METADATA_TYPES: dict[int, str] = {
    ConfigResourceType.TOPIC: "topic",
    ConfigResourceType.BROKER: "broker",
    ConfigResourceType.CLIENT_METRICS: "client-metrics",
    ConfigResourceType.GROUP: "group",
}
"""The types of resources whose settings are kept in the metadata, with the names of these types in the metadata."""


def check_broker_name(name: str, own_id: int, unexpected: str, noun: str = "Broker") -> None:
    """Raises KafkaError(invalid_request) unless `name` is this broker's id. `unexpected` is the template of the error's
    message, which gets this broker's id and then the id in `name`."""
    if broker_id(name, noun) != own_id:
        raise KafkaError(ErrorCode.invalid_request, unexpected.format(own_id, name))


def broker_id(name: str, noun: str = "Broker") -> int:
    """The id of the broker that a resource names. Raises KafkaError(invalid_request) if the name isn't an integer."""
    try:
        return int(name)
    except ValueError:
        raise KafkaError(ErrorCode.invalid_request, f"{noun} id must be an integer, but it is: {name}") from None


_KINDS = {ConfigResourceType.TOPIC: ResourceType.TOPIC, ConfigResourceType.GROUP: ResourceType.GROUP}


def check_right(broker: WithAuthorizer, request: Request, operation: AclOperation, kind: int, name: str) -> None:
    """Raises KafkaError if the client may not do the operation on the settings of a resource. The settings of brokers,
    loggers and client metrics are the cluster's. Resources of unknown types are refused elsewhere."""
    if kind in list(ConfigResourceType):
        resource_type = _KINDS.get(ConfigResourceType(kind), ResourceType.CLUSTER)
        named = CLUSTER_NAME if resource_type is ResourceType.CLUSTER else name
        if not broker.authorizer.allows(request, operation, resource_type, named):
            raise refused(resource_type)


async def answer_each(resources: Sequence[Any], change: Change) -> list[dict[str, Any]]:
    """Changes one resource after the other; an error of one doesn't affect the others. A resource that the request
    names more than once isn't changed at all."""
    counts = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    responses = []
    for resource in resources:
        kind, name = resource.resource_type, resource.resource_name
        response = {"resource_type": kind, "resource_name": name, "error_message": None}
        try:
            if counts[kind, name] > 1:
                raise KafkaError(ErrorCode.invalid_request, "Each resource must appear at most once.")
            await change(kind, name, resource.configs)
        except KafkaError as error:
            response |= {"error_code": error.code, "error_message": error.message}
        responses.append(response)
    return responses


class Parts(WithConfig, WithId, WithImage, WithIntents, WithTls, Protocol): ...


async def alter(broker: Parts, resource_type: int, name: str, edit: Edit, validate_only: bool) -> None:
    """Changes one resource's settings in the metadata; with `validate_only`, only checks whether that is possible.
    Raises KafkaError."""
    resource = _named(broker, resource_type, name)
    present = broker.image.config(resource.type, resource.name)
    wanted = edit(resource, present)
    certificates: Prepared = {}
    if resource == ("broker", str(broker.id)):
        _check_logins(broker, wanted)
        certificates = await _certificates(broker, wanted)
    if not validate_only:
        await broker.intents.alter_config(ConfigResource(*resource), lambda now: edit(resource, now))
        broker.tls.install(certificates)


def _check_logins(broker: Parts, wanted: Mapping[str, str]) -> None:
    """Raises KafkaError(invalid_request) for settings of this broker by which nobody could log in somewhere, as a JAAS
    configuration that can't be read. Problems that there are already don't matter: other settings can be changed."""
    if not any("sasl." in name for name in (*wanted, *broker.config.dynamic_broker)):
        return
    config, _ = broker.config.with_dynamic(wanted, broker.config.dynamic_default)
    present = login_problems(broker.config)
    if new := [problem for problem in login_problems(config) if problem not in present]:
        raise KafkaError(ErrorCode.invalid_request, "; ".join(new))


async def _certificates(broker: Parts, wanted: Mapping[str, str]) -> Prepared:
    """The certificates that this broker's settings `wanted` put in force. A file is read anew even if its path is the
    same. Raises KafkaError(invalid_request) for certificates that can't be used."""
    if not any("ssl." in name for name in (*wanted, *broker.config.dynamic_broker)):
        return {}
    config, _ = broker.config.with_dynamic(wanted, broker.config.dynamic_default)
    try:
        return await broker.tls.prepare(config)
    except InvalidTls as error:
        raise KafkaError(ErrorCode.invalid_request, str(error)) from None


def _named(broker: Parts, resource_type: int, name: str) -> Resource:
    """The resource under its name in the metadata. Raises KafkaError if the name is invalid, the topic doesn't exist,
    or the resource is another broker."""
    if resource_type not in METADATA_TYPES:
        raise KafkaError(ErrorCode.invalid_request, f"Unknown resource type {resource_type}")
    if resource_type == ConfigResourceType.TOPIC:
        if not name:
            raise KafkaError(ErrorCode.invalid_request, "Default topic resources are not allowed.")
        check_topic_name(name)
        if name not in broker.image.topics:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist.")
    elif resource_type == ConfigResourceType.BROKER and name:
        check_broker_name(name, broker.id, "Unexpected broker id, expected {}, but received {}", "Node")
        name = str(int(name))
    elif resource_type == ConfigResourceType.CLIENT_METRICS and not name:
        raise KafkaError(ErrorCode.invalid_request, "Subscription name can't be empty")
    elif resource_type == ConfigResourceType.GROUP and not name:
        raise KafkaError(ErrorCode.invalid_request, "Default group resources are not allowed.")
    return Resource(METADATA_TYPES[resource_type], name)
