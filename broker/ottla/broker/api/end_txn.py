"""EndTxn (26), versions 0–5: commits or aborts a producer's transaction.

The answer comes when the decision is committed, before the markers are written, and so before readers see the
transaction's end. A client of version 5 speaks the newer protocol (KIP-890): the answer names the producer id and epoch
of the client's next transaction.
"""

from __future__ import annotations

from typing import Any, Protocol

from ottla.broker.ports import WithAuthorizer, WithTransactions
from ottla.broker.request import Request
from ottla.broker.transaction.ending import Ending
from ottla.broker.transaction.metadata import V1, V2
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType, Right

from .declaration import Api
from .older_producers import known_to

API = Api(key=26, versions=(0, 5), needs=(Right(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID),))
NO_PRODUCER = {"producer_id": -1, "producer_epoch": -1}


class Parts(WithAuthorizer, WithTransactions, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Answers an error code, and from version 5 on the producer's next id and epoch."""
    kind = ResourceType.TRANSACTIONAL_ID
    if not broker.authorizer.allows(request, AclOperation.WRITE, kind, body.transactional_id):
        return {"error_code": ErrorCode.transactional_id_authorization_failed, **NO_PRODUCER}
    version = V2 if request.api_version >= 5 else V1
    ending = Ending(body.producer_id, body.producer_epoch, body.committed, version)
    try:
        answer = await broker.transactions.end(body.transactional_id, ending)
    except KafkaError as error:
        return {"error_code": error.code, **NO_PRODUCER}
    return {
        "error_code": known_to(request, answer.error, 2),
        "producer_id": answer.producer_id,
        "producer_epoch": answer.epoch,
    }
