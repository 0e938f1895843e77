"""AwaitRevision (key 31000), version 0, between brokers only: the answer comes once this broker has applied a revision.

The image is replaced and its listeners run in one turn of the event loop (`metadata/follower.py`). So once this broker
has answered, its image shows the revision, and the logs of the partitions that it leads by that revision are open.
Source: Ottla's own.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from ottla.broker.api.declaration import Api
from ottla.broker.ports import WithAuthorizer, WithConfig, WithFollower, WithImage, WithTasks
from ottla.broker.request import Request
from ottla.protocol.applied_revision import AWAIT_REVISION, VERSION, Question, read_question, write_answer
from ottla.protocol.errors import ProtocolError
from ottla.protocol.frames import response_frame
from ottla.protocol.received import Memory
from ottla.protocol.rights import CLUSTER_NAME, AclOperation, ResourceType, Right

if TYPE_CHECKING:
    from ottla.net.server import Reply

API = Api(
    key=AWAIT_REVISION,
    versions=(VERSION, VERSION),
    needs=(Right(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER),),
    own_name="await_revision",
)
WAIT_MS_MAX = 10_000


class Parts(WithAuthorizer, WithConfig, WithFollower, WithImage, WithTasks, Protocol): ...


def serve(broker: Parts, request: Request, frame: Memory, position: int, end: int) -> Reply:
    """Answers at once if the revision is applied, else when it is applied, or when the time that the request allows is
    over. The answer has the revision that this broker has applied."""
    question = read_question(frame, position, end)
    if request.listener != broker.config.listeners.inter_broker:
        raise ProtocolError("AwaitRevision is served on the inter-broker listener only")
    if not broker.authorizer.allows(request, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME):
        raise ProtocolError(f"{request.principal} has no right to CLUSTER_ACTION on the cluster")
    if broker.image.revision >= question.revision:
        return [_answer(broker, request)]
    broker.spawn(_answer_later(broker, request, question), "answer about a revision")
    return request.pending


async def _answer_later(broker: Parts, request: Request, question: Question) -> None:
    with suppress(TimeoutError):  # the answer has this broker's revision, even if that is an older one
        await broker.follower.wait_for_revision(question.revision, min(question.wait_ms, WAIT_MS_MAX) / 1000)
    request.pending.answer([_answer(broker, request)])


def _answer(broker: Parts, request: Request) -> bytes:
    body = write_answer(broker.image.revision)
    return response_frame(AWAIT_REVISION, request.api_version, request.correlation_id, body)
