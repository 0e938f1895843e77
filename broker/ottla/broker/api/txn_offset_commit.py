"""TxnOffsetCommit (28), versions 0–5: commits a group's offsets as a part of a producer's transaction.

The offsets count when the transaction is committed. Unknown topics and partitions are refused one by one. Requests from
version 3 on state the consumer's member id and generation, so that the group refuses consumers that aren't its members
any more (KIP-447).

Before the transaction's first offset is written to the group's partition, the transaction's coordinator must confirm
that the transaction has that partition. Clients before version 5 have added it by AddOffsetsToTxn; from version 5 on
the coordinator adds it (KIP-890).
"""

from __future__ import annotations

from typing import Any, Protocol

from ottla.broker.authorizer import allowed_names
from ottla.broker.ports import WithAuthorizer, WithGroups, WithImage, WithVerifier
from ottla.broker.request import Request
from ottla.broker.transaction.initialization import Producer
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType, Right

from .declaration import Api
from .offsets_to_commit import names, refuse_all, sort

API = Api(
    key=28,
    versions=(0, 5),
    needs=(
        Right(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID),
        Right(AclOperation.READ, ResourceType.GROUP),
        Right(AclOperation.READ, ResourceType.TOPIC),
    ),
)

_ADDS = 5  # the first version whose clients send no AddOffsetsToTxn
_ABORTABLE = 4  # the first version whose clients know TRANSACTION_ABORTABLE
_LOADS = 2  # the first version whose clients know COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296)


class Parts(WithAuthorizer, WithGroups, WithImage, WithVerifier, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Answers an error code for each partition once the offsets are committed to the log."""
    if (refusal := _refusal(broker, request, body)) is not ErrorCode.none:
        return refuse_all(body.topics, refusal, by_id=False)
    wanted = names(broker.image, body.topics, by_id=False)
    readable = allowed_names(broker.authorizer, request, AclOperation.READ, ResourceType.TOPIC, wanted)
    found = sort(broker.image, body.topics, readable, by_id=False)
    if not found.offsets:
        return found.answered(())
    producer = Producer(body.producer_id, body.producer_epoch)
    adds = request.api_version >= _ADDS
    try:
        commits = broker.groups.prepare(body.group_id, producer, bumps=adds)
        if commits.needs_confirmation:
            errors = await broker.verifier.confirm(body.transactional_id, producer, {commits.partition}, adds=adds)
            if (error := errors[commits.partition]) is not ErrorCode.none:
                raise KafkaError(error)
            # The offsets of a topic that was deleted during the question are deleted. They mustn't come back, because a
            # new topic of that name would inherit them.
            found = sort(broker.image, body.topics, readable, by_id=False)
        codes = await broker.groups.commit_in_transaction(
            body.group_id, commits, body.member_id, body.generation_id, body.group_instance_id, found.offsets
        )
    except KafkaError as error:
        codes = [_for_client(request, error.code)] * len(found.offsets)
    return found.answered(codes)


def _refusal(broker: Parts, request: Request, body: Any) -> ErrorCode:
    """The error for a client without the right to the transaction or to the group; NONE for other clients."""
    authorizer = broker.authorizer
    kind = ResourceType.TRANSACTIONAL_ID
    if not authorizer.allows(request, AclOperation.WRITE, kind, body.transactional_id):
        return ErrorCode.transactional_id_authorization_failed
    if not authorizer.allows(request, AclOperation.READ, ResourceType.GROUP, body.group_id):
        return ErrorCode.group_authorization_failed
    return ErrorCode.none


def _for_client(request: Request, code: ErrorCode) -> ErrorCode:
    """The error code for the client in place of `code`. Clients of the request's version react to it as they should:
    they repeat the request, abort the transaction, or give up."""
    if code is ErrorCode.network_exception:  # to ask again is right, but older clients give up at this code
        code = ErrorCode.coordinator_load_in_progress
    if code is ErrorCode.coordinator_load_in_progress and request.api_version < _LOADS:
        return ErrorCode.coordinator_not_available
    if code is ErrorCode.transaction_abortable and request.api_version < _ABORTABLE:
        return ErrorCode.invalid_txn_state
    return ErrorCode.invalid_producer_epoch if code is ErrorCode.producer_fenced else code
