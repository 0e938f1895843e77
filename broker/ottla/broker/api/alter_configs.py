"""AlterConfigs (key 33), versions 0–2: replaces all settings of a resource. New clients send key 44 instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.config_resources import alter, repeated_resources
from ottla.broker.api.registry import Api, RequestContext
from ottla.broker.settings.alteration import Edit, Operation, altered
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.broker.node import Broker

API = Api(key=33, versions=(0, 2))


async def handle(broker: Broker, context: RequestContext, request: Any) -> dict[str, Any]:
    """Each resource has exactly the given settings afterwards, or is left as it was."""
    repeated = repeated_resources(request.resources)
    responses = []
    for resource in request.resources:
        kind, name = resource.resource_type, resource.resource_name
        response = {"resource_type": kind, "resource_name": name, "error_message": None}
        edits = [Edit(config.name, Operation.SET, config.value) for config in resource.configs]
        try:
            if (kind, name) in repeated:
                raise KafkaError(ErrorCode.invalid_request, "Each resource must appear at most once.")
            await _replace_settings(broker, kind, name, edits, request.validate_only)
        except KafkaError as error:
            response |= {"error_code": error.code, "error_message": error.message}
        responses.append(response)
    return {"responses": responses}


async def _replace_settings(broker: Broker, kind: int, name: str, edits: list[Edit], validate_only: bool) -> None:
    await alter(broker, kind, name, lambda resource, _: altered(broker.config, resource, {}, edits), validate_only)
