"""DescribeUserScramCredentials (key 50), version 0: users' SCRAM mechanisms and iterations, never salts or keys.

Source: Apache Kafka 4.3's ScramImage.describe.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ottla.broker.api.declaration import Api, Response
from ottla.broker.api.refusals import NOT_ON_CLUSTER
from ottla.broker.login.credentials import MECHANISM_OF
from ottla.broker.ports import WithImage
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode
from ottla.protocol.rights import AclOperation, ResourceType, Right


def _refuse(version: int, body: Any) -> Response:
    """The answer to a client without the right, which names no user, as Kafka's."""
    return {**NOT_ON_CLUSTER, "results": [NOT_ON_CLUSTER for _ in body.users or ()]}


API = Api(key=50, versions=(0, 0), needs=(Right(AclOperation.DESCRIBE, ResourceType.CLUSTER),), refuse=_refuse)


async def handle(broker: WithImage, request: Request, body: Any) -> dict[str, Any]:
    """Describes the users of the request, or all of them if it names none."""
    known = broker.image.scram
    asked = Counter(user.name for user in body.users or ())
    if not asked:
        asked = Counter({user for user, _ in known})
    return {"results": [_described(user, count, known) for user, count in asked.items()]}


def _described(user: str, count: int, known: Any) -> dict[str, Any]:
    if count > 1:
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
        return {"user": user, "error_code": ErrorCode.duplicate_resource, "error_message": message}
    infos = [
        {"mechanism": number, "iterations": known[user, mechanism].iterations}
        for number, mechanism in MECHANISM_OF.items()
        if (user, mechanism) in known
    ]
    if not infos:
        message = f"Attempt to describe a user credential that does not exist: {user}"
        return {"user": user, "error_code": ErrorCode.resource_not_found, "error_message": message}
    return {"user": user, "error_code": ErrorCode.none, "credential_infos": infos}
