"""CreateAcls, DescribeAcls and DeleteAcls, and answers about topics to clients that have few rights."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ottla.broker import in_force
from ottla.protocol.acls import ANY, AclBinding, PatternType, Permission
from ottla.protocol.errors import ErrorCode
from ottla.protocol.rights import AclOperation, ResourceType
from tests.unit.broker.api.stand_in import BrokerStandIn, broker_stand_in

METADATA, CREATE_TOPICS, DELETE_TOPICS, DESCRIBE, CREATE, DELETE = 3, 19, 20, 29, 30, 31
AUTHORIZED = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
ANONYMOUS = "User:ANONYMOUS"


def creation(**fields: Any) -> dict[str, Any]:
    acl = {"resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:a", "host": "*"}
    return {**acl, "operation": 3, "permission_type": 3, **fields}


def chosen(**fields: Any) -> dict[str, Any]:
    every = {"resource_type_filter": ANY, "pattern_type_filter": ANY, "operation": ANY, "permission_type": ANY}
    return {**every, "resource_name_filter": None, "principal_filter": None, "host_filter": None, **fields}


async def created(broker: BrokerStandIn, *creations: dict[str, Any]) -> list[int]:
    answer = await broker.ask(CREATE, 3, {"creations": list(creations)})
    return [result.error_code for result in answer.results]


def played(folder: Path, scene: Callable[[BrokerStandIn], Awaitable[None]], settings: str = AUTHORIZED) -> None:
    async def main() -> None:
        async with broker_stand_in(folder, settings) as broker:
            await scene(broker)

    asyncio.run(main())


def test_acls_are_created_described_and_deleted(tmp_path: Path) -> None:
    async def scene(broker: BrokerStandIn) -> None:
        assert await created(broker, creation(), creation(), creation(principal="User:b", operation=2)) == [0, 0, 0]
        binding = AclBinding(
            ResourceType.TOPIC, PatternType.LITERAL, "t", "User:a", "*", AclOperation.READ, Permission.ALLOW
        )
        assert set(broker.image.acls) == {binding, binding._replace(principal="User:b", operation=AclOperation.ALL)}
        [resource] = (await broker.ask(DESCRIBE, 3, chosen())).resources
        assert (resource.resource_type, resource.resource_name, resource.pattern_type) == (2, "t", 3)
        assert {(acl.principal, acl.operation) for acl in resource.acls} == {("User:a", 3), ("User:b", 2)}
        filters = [chosen(principal_filter="User:a"), chosen(resource_name_filter="t"), chosen(host_filter="1.2.3.4")]
        answer = await broker.ask(DELETE, 3, {"filters": filters})
        deleted = [[acl.principal for acl in result.matching_acls] for result in answer.filter_results]
        assert [sorted(names) for names in deleted] == [["User:a"], ["User:a", "User:b"], []]
        assert not broker.image.acls
        assert (await broker.ask(DESCRIBE, 3, chosen())).resources == ()

    played(tmp_path, scene)


def test_impossible_acls_are_refused_one_by_one_and_meaningless_numbers_together(tmp_path: Path) -> None:
    async def scene(broker: BrokerStandIn) -> None:
        mistakes = [creation(resource_name=""), creation(resource_type=4), creation(principal="a")]
        assert await created(broker, *mistakes, creation()) == [42, 42, 42, 0]
        for number in ({"operation": 1}, {"operation": 99}, {"resource_type": 1}, {"resource_pattern_type": 2}):
            assert await created(broker, creation(resource_name="u"), creation(**number)) == [-1, -1]
        assert {binding.name for binding in broker.image.acls} == {"t"}
        assert (await broker.ask(DESCRIBE, 3, chosen(operation=99))).error_code == -1
        answer = await broker.ask(DELETE, 3, {"filters": [chosen(), chosen(pattern_type_filter=9)]})
        assert [result.error_code for result in answer.filter_results] == [-1, -1]
        assert broker.image.acls

    played(tmp_path, scene)


def test_without_an_authorizer_there_are_no_acls(tmp_path: Path) -> None:
    async def scene(broker: BrokerStandIn) -> None:
        assert await created(broker, creation(), creation()) == [54, 54]
        answer = await broker.ask(DELETE, 3, {"filters": [chosen()]})
        assert [result.error_code for result in answer.filter_results] == [54]
        assert (await broker.ask(DESCRIBE, 3, chosen())).error_code == 54
        assert not broker.image.acls

    played(tmp_path, scene, "")


def test_a_change_that_some_broker_has_not_applied_in_time_is_written_and_answered_so(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(in_force, "TIMEOUT_S", 5.0)
    deadlines: list[float] = []

    async def everywhere_by(deadline: float) -> frozenset[int]:
        deadlines.append(deadline - asyncio.get_running_loop().time())
        return frozenset({3, 2})

    async def scene(broker: BrokerStandIn) -> None:
        broker.applied_revisions.everywhere_by = everywhere_by
        answer = await broker.ask(CREATE, 3, {"creations": [creation(), creation(resource_name="")]})
        assert [result.error_code for result in answer.results] == [ErrorCode.request_timed_out, 42]
        assert "on the brokers 2, 3 yet" in answer.results[0].error_message
        assert len(broker.image.acls) == 1
        answer = await broker.ask(DELETE, 3, {"filters": [chosen()]})
        assert [result.error_code for result in answer.filter_results] == [ErrorCode.request_timed_out]
        assert not broker.image.acls
        assert all(0 < left <= 5.0 for left in deadlines)

    played(tmp_path, scene)


def on_topic(operation: AclOperation, name: str, **fields: Any) -> dict[str, Any]:
    return creation(principal=ANONYMOUS, resource_name=name, operation=operation, **fields)


async def metadata(broker: BrokerStandIn, topics: list[str] | None, *, create: bool = False) -> dict[str, int]:
    asked = None if topics is None else [{"name": name} for name in topics]
    message = {"topics": asked, "allow_auto_topic_creation": create, "include_topic_authorized_operations": True}
    answer = await broker.ask(METADATA, 12, message)
    return {topic.name: topic.error_code or topic.topic_authorized_operations for topic in answer.topics}


def test_metadata_hides_topics_and_shows_the_operations_on_others(tmp_path: Path) -> None:
    new = {"num_partitions": 1, "replication_factor": 1}

    async def scene(broker: BrokerStandIn) -> None:
        await created(broker, on_topic(AclOperation.CREATE, "s", resource_pattern_type=4))
        made = {"topics": [{"name": "s1", **new}, {"name": "s2", **new}, {"name": "t", **new}], "timeout": 10_000}
        answer = await broker.ask(CREATE_TOPICS, 7, made)
        assert {topic.name: topic.error_code for topic in answer.topics} == {"s1": 0, "s2": 0, "t": 29}
        assert {topic.topic_config_error_code for topic in answer.topics if not topic.error_code} == {29}
        assert await metadata(broker, None) == {}
        await created(broker, on_topic(AclOperation.READ, "s1"), on_topic(AclOperation.WRITE, "new"))
        assert await metadata(broker, None) == {"s1": 1 << 3 | 1 << 5 | 1 << 8}
        assert await metadata(broker, ["s1", "s2", "no"]) == {"s1": 1 << 3 | 1 << 5 | 1 << 8, "s2": 29, "no": 29}
        assert await metadata(broker, ["new"]) == {"new": ErrorCode.unknown_topic_or_partition}
        assert await metadata(broker, ["new"], create=True) == {"new": 29}
        assert "new" not in broker.image.topics
        await created(broker, on_topic(AclOperation.CREATE, "new"))
        assert await metadata(broker, ["new"], create=True) == {"new": 1 << 4 | 1 << 5 | 1 << 8}

    played(tmp_path, scene, f"{AUTHORIZED}auto.create.topics.enable=true")


def test_the_deletion_of_a_topic_tells_its_name_only_to_those_who_may_describe_it(tmp_path: Path) -> None:
    new = {"num_partitions": 1, "replication_factor": 1}

    async def scene(broker: BrokerStandIn) -> None:
        await created(broker, on_topic(AclOperation.CREATE, "*"))
        await broker.ask(CREATE_TOPICS, 7, {"topics": [{"name": "t", **new}], "timeout": 10_000})
        topic_id = broker.image.topics["t"].id

        async def deleted() -> list[tuple[str | None, int]]:
            asked = [{"name": None, "topic_id": topic_id}, {"name": "absent", "topic_id": None}]
            answer = await broker.ask(DELETE_TOPICS, 6, {"topics": asked, "timeout": 10_000})
            return [(response.name, response.error_code) for response in answer.responses]

        assert await deleted() == [(None, 29), ("absent", 29)]
        await created(broker, on_topic(AclOperation.DESCRIBE, "*"))
        assert await deleted() == [("t", 29), ("absent", 3)]
        await created(broker, on_topic(AclOperation.DELETE, "t"))
        assert await deleted() == [("absent", 3), ("t", 0)]

    played(tmp_path, scene)
