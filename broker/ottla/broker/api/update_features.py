"""UpdateFeatures (key 57), versions 0–2: finalises levels of features, all that a request names or none.

As in Apache Kafka 4.3, a feature that a request names twice gets the second level, and a request of version 0 can only
raise levels: Kafka doesn't look at `allow_downgrade`, which later versions don't have.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.api.declaration import Api, Response
from ottla.broker.api.refusals import NOT_ON_CLUSTER
from ottla.broker.ports import WithIntents
from ottla.broker.request import Request
from ottla.metadata.intents.features import FeatureUpdate
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import milliseconds
from ottla.protocol.rights import AclOperation, ResourceType, Right


def _refuse(version: int, body: Any) -> Response:
    """The answer to a client without the right."""
    return NOT_ON_CLUSTER


API = Api(
    key=57,
    versions=(0, 2),
    needs=(Right(AclOperation.ALTER, ResourceType.CLUSTER),),
    gaps=("A broker that doesn't run isn't asked whether it supports a level; it refuses to start if it doesn't.",),
    changes_metadata=True,
    refuse=_refuse,
)


async def handle(broker: WithIntents, request: Request, body: Any) -> dict[str, Any]:
    updates = {
        update.feature: FeatureUpdate(update.max_version_level, update.upgrade_type) for update in body.feature_updates
    }
    try:
        await broker.intents.update_features(
            updates, milliseconds(body.timeout) / 1000, validate_only=body.validate_only
        )
    except KafkaError as error:
        return {"error_code": error.code, "error_message": error.message or None}
    # Kafka sends its name of "no error" as the message of each result.
    results = [
        {"feature": update.feature, "error_code": ErrorCode.none, "error_message": "NONE"}
        for update in body.feature_updates
    ]
    return {"error_code": ErrorCode.none, "results": results}
