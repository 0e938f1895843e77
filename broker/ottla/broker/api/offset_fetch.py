"""OffsetFetch (9), versions 1–10: the committed offsets of groups.

A request asks for one group before version 8, for several groups from version 8 on. A null list of topics (from version
2 on) asks for all topics. Requests have topics' names before version 10, topics' ids from version 10 on. An offset is
shown once its record is committed. With `require_stable` (from version 7 on) the answer waits for the records that are
appended and not committed yet. A partition without a committed offset gets offset −1 and no error, even in a group that
doesn't exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any, Protocol
from uuid import UUID

from ottla.broker.authorizer import allowed_names
from ottla.broker.group.records import Committed
from ottla.broker.ports import WithAuthorizer, WithGroups, WithImage
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType, Right

from .declaration import Api
from .refusals import refused

API = Api(
    key=9,
    versions=(1, 10),
    needs=(Right(AclOperation.DESCRIBE, ResourceType.GROUP), Right(AclOperation.DESCRIBE, ResourceType.TOPIC)),
    gaps=("member id and epoch (version 9 on) matter to KIP-848 groups only",),
)


class Parts(WithAuthorizer, WithGroups, WithImage, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Answers the committed offsets, group by group."""
    version = request.api_version
    if version >= 8:
        groups = [
            await _group(broker, request, asked.group_id, asked.topics, body.require_stable, by_id=version >= 10)
            for asked in body.groups
        ]
        return {"groups": groups}
    answer = await _group(
        broker, request, body.group_id, body.topics, version >= 7 and body.require_stable, by_id=False
    )
    code = answer["error_code"]
    if code is not ErrorCode.none and version < 2:  # only partitions have an error code in version 1
        return {
            "topics": [
                {"name": asked.name, "partitions": [_partition(index, code) for index in asked.partition_indexes]}
                for asked in body.topics
            ]
        }
    return answer


async def _group(
    broker: Parts, request: Request, group_id: str, topics: Iterable[Any] | None, require_stable: bool, *, by_id: bool
) -> dict[str, Any]:
    try:
        if not broker.authorizer.allows(request, AclOperation.DESCRIBE, ResourceType.GROUP, group_id):
            raise refused(ResourceType.GROUP)
        if topics is None:
            found = await _everything(broker, request, group_id, require_stable, by_id)
        else:
            found = await _asked(broker, request, group_id, topics, require_stable, by_id)
    except KafkaError as error:
        return {"group_id": group_id, "error_code": error.code, "topics": []}
    return {"group_id": group_id, "error_code": ErrorCode.none, "topics": found}


async def _asked(
    broker: Parts, request: Request, group_id: str, topics: Iterable[Any], require_stable: bool, by_id: bool
) -> list[dict[str, Any]]:
    topics = list(topics)
    names = [_name(broker, asked, by_id) for asked in topics]
    describable = _describable(broker, request, (name for name in names if name is not None))
    answers: list[dict[str, Any]] = []
    wanted: list[tuple[str, int]] = []
    places: list[list[dict[str, Any]]] = []
    for asked, name in zip(topics, names, strict=True):
        answer: dict[str, Any] = {"topic_id": asked.topic_id} if by_id else {"name": asked.name}
        answer["partitions"] = []
        answers.append(answer)
        for index in asked.partition_indexes:
            if name is None:
                answer["partitions"].append(_partition(index, ErrorCode.unknown_topic_id))
            elif name not in describable:
                answer["partitions"].append(_partition(index, ErrorCode.topic_authorization_failed))
            else:
                wanted.append((name, index))
                places.append(answer["partitions"])
    values = await broker.groups.fetch(group_id, wanted, require_stable)
    for (_, index), place, value in zip(wanted, places, values, strict=True):
        place.append(_partition(index, value))
    return answers


def _name(broker: Parts, asked: Any, by_id: bool) -> str | None:
    """The name of a requested topic; None for an id that no topic has."""
    if not by_id:
        name: str = asked.name
        return name
    topic = None if asked.topic_id is None else broker.image.topics_by_id.get(asked.topic_id)
    return None if topic is None else topic.name


def _describable(broker: Parts, request: Request, names: Iterable[str]) -> Set[str]:
    return allowed_names(broker.authorizer, request, AclOperation.DESCRIBE, ResourceType.TOPIC, names)


async def _everything(
    broker: Parts, request: Request, group_id: str, require_stable: bool, by_id: bool
) -> list[dict[str, Any]]:
    answers = []
    committed = await broker.groups.fetch_all(group_id, require_stable)
    describable = _describable(broker, request, committed)
    for name, partitions in committed.items():
        if name not in describable:
            continue
        answer: dict[str, Any] = {
            "name": name,
            "partitions": [_partition(index, value) for index, value in partitions.items()],
        }
        if by_id:
            topic_id = _topic_id(broker, name)
            if topic_id is None:
                continue  # a deleted topic has no id, so it is left out
            answer["topic_id"] = topic_id
        answers.append(answer)
    return answers


def _topic_id(broker: Parts, name: str) -> UUID | None:
    topic = broker.image.topics.get(name)
    return None if topic is None else topic.id


def _partition(index: int, value: Committed | ErrorCode | None) -> dict[str, Any]:
    if isinstance(value, Committed):
        return {
            "partition_index": index,
            "committed_offset": value.offset,
            "committed_leader_epoch": value.leader_epoch,
            "metadata": value.metadata,
            "error_code": ErrorCode.none,
        }
    return {
        "partition_index": index,
        "committed_offset": -1,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": ErrorCode.none if value is None else value,
    }
