"""IncrementalAlterConfigs (key 44), versions 0–1: changes single settings, and log levels of this broker's process."""

from __future__ import annotations

from typing import Any, Protocol

from ottla.broker.api.config_resources import ConfigResourceType, alter, answer_each, check_broker_name, check_right
from ottla.broker.api.declaration import Api
from ottla.broker.log_levels import check_log_level, set_log_level
from ottla.broker.ports import WithAuthorizer, WithConfig, WithId, WithImage, WithIntents, WithTls
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType, Right
from ottla.settings.alteration import Edit, Operation, altered

API = Api(
    key=44,
    versions=(0, 1),
    needs=(
        Right(AclOperation.ALTER_CONFIGS, ResourceType.TOPIC),
        Right(AclOperation.ALTER_CONFIGS, ResourceType.GROUP),
        Right(AclOperation.ALTER_CONFIGS, ResourceType.CLUSTER),
    ),
    gaps=(
        "An unknown broker setting is refused with INVALID_CONFIG; Kafka keeps it for plug-ins.",
        "A JAAS configuration by which nobody could log in is refused with INVALID_REQUEST; Kafka stores it.",
    ),
    changes_metadata=True,
)


class Parts(WithAuthorizer, WithConfig, WithId, WithImage, WithIntents, WithTls, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Changes each resource as a whole or not at all."""

    async def change(kind: int, name: str, configs: Any) -> None:
        check_right(broker, request, AclOperation.ALTER_CONFIGS, kind, name)
        edits = [Edit(config.name, config.config_operation, config.value) for config in configs]
        if kind == ConfigResourceType.BROKER_LOGGER:
            _alter_log_levels(broker, name, edits, body.validate_only)
        else:
            await _alter_settings(broker, kind, name, edits, body.validate_only)

    return {"responses": await answer_each(body.resources, change)}


async def _alter_settings(broker: Parts, kind: int, name: str, edits: list[Edit], validate_only: bool) -> None:
    await alter(broker, kind, name, lambda resource, now: altered(broker.config, resource, now, edits), validate_only)


def _alter_log_levels(broker: Parts, name: str, edits: list[Edit], validate_only: bool) -> None:
    check_broker_name(name, broker.id, "Unexpected node id. Expected {}, but received {}", "Node")
    levels: dict[str, str | None] = {}
    for edit in edits:
        if edit.operation not in (Operation.SET, Operation.DELETE):
            operation = Operation(edit.operation).name if edit.operation in list(Operation) else str(edit.operation)
            message = f"{operation} operation is not allowed for the BROKER_LOGGER resource"
            raise KafkaError(ErrorCode.invalid_request, message)
        levels[edit.name] = (edit.value or "") if edit.operation == Operation.SET else None
        check_log_level(edit.name, levels[edit.name])
    if not validate_only:
        for logger, level in levels.items():
            set_log_level(logger, level)
