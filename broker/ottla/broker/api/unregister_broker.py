"""UnregisterBroker (key 64), version 0: deletes a broker's registration.

If the broker is running, it registers anew, with a new broker epoch.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.api.declaration import Api, Response
from ottla.broker.api.refusals import NOT_ON_CLUSTER
from ottla.broker.ports import WithIntents
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType, Right


def _refuse(version: int, body: Any) -> Response:
    """The answer to a client without the right."""
    return NOT_ON_CLUSTER


API = Api(
    key=64,
    versions=(0, 0),
    needs=(Right(AclOperation.ALTER, ResourceType.CLUSTER),),
    gaps=("A running broker registers anew at once; a broker that doesn't run has no registration to delete.",),
    changes_metadata=True,
    refuse=_refuse,
)


async def handle(broker: WithIntents, request: Request, body: Any) -> dict[str, Any]:
    try:
        await broker.intents.unregister_broker(body.broker_id)
    except KafkaError as error:
        return {"error_code": error.code, "error_message": error.message or None}
    return {"error_code": ErrorCode.none, "error_message": ""}  # as Kafka
