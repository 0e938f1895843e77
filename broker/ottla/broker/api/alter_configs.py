"""AlterConfigs (key 33), versions 0–2: replaces all settings of a resource. New clients send key 44 instead."""

from __future__ import annotations

from typing import Any, Protocol

from ottla.broker.api.config_resources import alter, answer_each, check_right
from ottla.broker.api.declaration import Api
from ottla.broker.ports import WithAuthorizer, WithConfig, WithId, WithImage, WithIntents, WithTls
from ottla.broker.request import Request
from ottla.protocol.rights import AclOperation, ResourceType, Right
from ottla.settings.alteration import Edit, Operation, altered

API = Api(
    key=33,
    versions=(0, 2),
    needs=(
        Right(AclOperation.ALTER_CONFIGS, ResourceType.TOPIC),
        Right(AclOperation.ALTER_CONFIGS, ResourceType.GROUP),
        Right(AclOperation.ALTER_CONFIGS, ResourceType.CLUSTER),
    ),
    gaps=("A JAAS configuration by which nobody could log in is refused with INVALID_REQUEST; Kafka stores it.",),
    changes_metadata=True,
)


class Parts(WithAuthorizer, WithConfig, WithId, WithImage, WithIntents, WithTls, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Gives each resource exactly the settings in the request, or leaves the resource as it was."""

    async def replace(kind: int, name: str, configs: Any) -> None:
        check_right(broker, request, AclOperation.ALTER_CONFIGS, kind, name)
        edits = [Edit(config.name, Operation.SET, config.value) for config in configs]
        await _replace_settings(broker, kind, name, edits, body.validate_only)

    return {"responses": await answer_each(body.resources, replace)}


async def _replace_settings(broker: Parts, kind: int, name: str, edits: list[Edit], validate_only: bool) -> None:
    await alter(broker, kind, name, lambda resource, _: altered(broker.config, resource, {}, edits), validate_only)
