"""DescribeClientQuotas (key 48), versions 0–1: the limits of the entities that match a filter."""

from __future__ import annotations

from typing import Any

from ottla.broker.api.declaration import Api, Response
from ottla.broker.api.refusals import NOT_ON_CLUSTER
from ottla.broker.ports import WithImage
from ottla.broker.request import Request
from ottla.protocol.errors import KafkaError
from ottla.protocol.rights import AclOperation, ResourceType, Right
from ottla.settings.quotas import Component, matching


def _refuse(version: int, body: Any) -> Response:
    """The answer to a client without the right."""
    return {**NOT_ON_CLUSTER, "entries": None}


API = Api(
    key=48,
    versions=(0, 1),
    needs=(Right(AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),),
    refuse=_refuse,
)


async def handle(broker: WithImage, request: Request, body: Any) -> dict[str, Any]:
    """Answers the matching entities with their limits. A filter without components matches every entity, unless it is
    strict."""
    quotas = broker.image.quotas
    components = [Component(part.entity_type, part.match_type, part.match) for part in body.components]
    try:
        entities = matching(quotas, components, body.strict)
    except KafkaError as error:
        return {"error_code": error.code, "error_message": error.message, "entries": None}
    return {
        "error_message": "",
        "entries": [
            {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
                "values": [{"key": key, "value": value} for key, value in quotas[entity].limits.items()],
            }
            for entity in entities
        ],
    }
