"""AlterUserScramCredentials (key 51), version 0: sets and deletes users' SCRAM credentials.

The answer comes when the changes are in force at every registered broker, so that a user who was deleted can log in
nowhere. If some broker hasn't applied them in time, the answer is REQUEST_TIMED_OUT, although the changes are made.
(Apache Kafka answers earlier: other brokers learn of the changes some time later.)
"""

from __future__ import annotations

from typing import Any, Protocol

from ottla.broker.api.declaration import Api, Response
from ottla.broker.api.refusals import NOT_ON_CLUSTER
from ottla.broker.in_force import in_force
from ottla.broker.login.credentials import Change, Deletion, Upsertion, changes_of
from ottla.broker.ports import WithAppliedRevisions, WithImage, WithIntents
from ottla.broker.request import Request
from ottla.metadata.model.users import ScramKeys
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType, Right


def _refuse(version: int, body: Any) -> Response:
    """The answer to a client without the right."""
    users = {each.name for each in (*body.deletions, *body.upsertions)}
    return {"results": [{"user": user, **NOT_ON_CLUSTER} for user in sorted(users)]}


API = Api(
    key=51,
    versions=(0, 0),
    needs=(Right(AclOperation.ALTER, ResourceType.CLUSTER),),
    changes_metadata=True,
    refuse=_refuse,
)


class Parts(WithAppliedRevisions, WithImage, WithIntents, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Makes the changes that are valid, and answers each user's change."""
    changes, errors = changes_of(
        [Deletion(each.name, each.mechanism) for each in body.deletions],
        [
            Upsertion(each.name, each.mechanism, each.iterations, each.salt, each.salted_password)
            for each in body.upsertions
        ],
        broker.image.scram,
    )
    done: list[str] = []
    if changes:
        try:
            async with in_force(broker.applied_revisions):
                for change in changes:
                    try:
                        await _carry_out(broker, change)
                        done.append(change.user)
                    except KafkaError as error:
                        errors[change.user] = error
        except KafkaError as error:
            errors |= dict.fromkeys(done, error)
    return {
        "results": [
            *({"user": user, "error_code": ErrorCode.none} for user in done if user not in errors),
            *(
                {"user": user, "error_code": error.code, "error_message": error.message}
                for user, error in errors.items()
            ),
        ]
    }


async def _carry_out(broker: Parts, change: Change) -> None:
    given = change.credential
    if given is None:
        await broker.intents.delete_scram(change.user, change.mechanism)
    else:
        keys = ScramKeys(given.salt, given.stored_key, given.server_key, given.iterations)
        await broker.intents.put_scram(change.user, change.mechanism, keys)
