"""ListConfigResources (key 74), versions 0–1: resources that can have settings; version 0 has client metrics only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ottla.broker.api.config_resources import METADATA_TYPES, ConfigResourceType
from ottla.broker.api.declaration import Api, Response
from ottla.broker.api.refusals import NOT_ON_CLUSTER
from ottla.broker.ports import WithImage
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode
from ottla.protocol.rights import AclOperation, ResourceType, Right


def _refuse(version: int, body: Any) -> Response:
    """The answer to a client without the right."""
    return {"error_code": NOT_ON_CLUSTER["error_code"], "config_resources": []}


API = Api(key=74, versions=(0, 1), needs=(Right(AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),), refuse=_refuse)


async def handle(broker: WithImage, request: Request, body: Any) -> dict[str, Any]:
    """Names the resources of the requested types, or of all types if the request has none: all topics and registered
    brokers, and the groups and client-metrics subscriptions that have settings."""
    types = (
        [ConfigResourceType.CLIENT_METRICS]
        if request.api_version == 0
        else body.resource_types or list(ConfigResourceType)
    )
    if any(kind not in list(ConfigResourceType) for kind in types):
        return {"error_code": ErrorCode.unsupported_version, "config_resources": []}
    found = [(name, kind) for kind in dict.fromkeys(types) for name in _names(broker, kind)]
    return {"config_resources": [{"resource_name": name, "resource_type": kind} for name, kind in found]}


def _names(broker: WithImage, kind: int) -> Iterable[str]:
    image = broker.image
    if kind == ConfigResourceType.TOPIC:
        return list(image.topics)
    if kind in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER):
        return [str(broker_id) for broker_id in image.brokers]
    return [resource.name for resource in image.configs if resource.type == METADATA_TYPES[kind]]
