"""AlterClientQuotas (key 49), versions 0–1: stores the limits of users, client ids and addresses.

All registered brokers enforce the limits when the answer comes (`throttling.py`).
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Protocol

from ottla.broker.api.declaration import Api, Response
from ottla.broker.api.refusals import NOT_ON_CLUSTER
from ottla.broker.ports import WithImage, WithIntents
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType, Right
from ottla.settings.quotas import IP, Entity, Limit, altered_limits, check_entity


def _refuse(version: int, body: Any) -> Response:
    """The answer to a client without the right."""
    return {
        "entries": [
            {
                "entity": [{"entity_type": part.entity_type, "entity_name": part.entity_name} for part in entry.entity],
                **NOT_ON_CLUSTER,
            }
            for entry in body.entries
        ]
    }


API = Api(
    key=49,
    versions=(0, 1),
    needs=(Right(AclOperation.ALTER_CONFIGS, ResourceType.CLUSTER),),
    changes_metadata=True,
    refuse=_refuse,
)

RESOLVE_TIMEOUT_SECONDS = 5.0


class Parts(WithImage, WithIntents, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Changes all limits of an entity together or none of them. Refuses an entity that the request names twice."""
    named = [{part.entity_type: part.entity_name for part in entry.entity} for entry in body.entries]
    entries = []
    for entry, entity in zip(body.entries, named, strict=True):
        answer: dict[str, Any] = {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]
        }
        entries.append(answer)
        try:
            if named.count(entity) > 1:
                raise KafkaError(ErrorCode.invalid_request, "An entity must appear at most once.")
            changes = [Limit(op.key, None if op.remove else op.value) for op in entry.ops]
            if len({change.key for change in changes}) != len(changes):
                raise KafkaError(ErrorCode.invalid_request, "A quota must appear at most once for an entity.")
            await _alter(broker, check_entity(entity.items()), changes, body.validate_only)
        except KafkaError as error:
            answer |= {"error_code": error.code, "error_message": error.message}
    return {"entries": entries}


async def _alter(broker: Parts, entity: Entity, changes: list[Limit], validate_only: bool) -> None:
    if entity[0][0] == IP and entity[0][1] is not None:
        await _check_address(entity[0][1])
    if validate_only:
        quota = broker.image.quotas.get(entity)
        altered_limits(entity, {} if quota is None else quota.limits, changes)
    else:
        await broker.intents.alter_quota(entity, lambda present: altered_limits(entity, present, changes))


async def _check_address(name: str) -> None:
    """Raises KafkaError(invalid_request) unless the name is an address or resolves to one."""
    try:
        await asyncio.wait_for(asyncio.get_running_loop().getaddrinfo(name, None), RESOLVE_TIMEOUT_SECONDS)
    except (socket.gaierror, UnicodeError, TimeoutError):
        message = f"{name} is not a valid IP or resolvable host."
        raise KafkaError(ErrorCode.invalid_request, message) from None
