"""AlterUserScramCredentials (key 51), version 0: sets and deletes users' SCRAM credentials.

The answer comes when the changes are in force at every registered broker, so that a user who was deleted can log in
nowhere. If some broker hasn't applied them within `FORCE_S`, the answer is REQUEST_TIMED_OUT, although the changes are
made. (Apache Kafka answers earlier: other brokers learn of the changes some time later.)
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from ottla.broker.api.declaration import Api
from ottla.broker.login.credentials import Change, Deletion, Upsertion, changes_of
from ottla.broker.ports import WithAppliedRevisions, WithImage, WithIntents
from ottla.broker.request import Request
from ottla.metadata.model.users import ScramKeys
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType, Right

API = Api(key=51, versions=(0, 0), needs=(Right(AclOperation.ALTER, ResourceType.CLUSTER),))
FORCE_S = 20.0  # below the request time-out of Kafka's clients, 30 s: the request itself names no time-out


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
    done = []
    for change in changes:
        try:
            await _carry_out(broker, change)
            done.append(change.user)
        except KafkaError as error:
            errors[change.user] = error
    deadline = asyncio.get_running_loop().time() + FORCE_S
    if done and (behind := await broker.applied_revisions.everywhere_by(deadline)):
        message = f"Brokers {', '.join(map(str, sorted(behind)))} don't know the change yet"
        errors |= {user: KafkaError(ErrorCode.request_timed_out, message) for user in done}
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
