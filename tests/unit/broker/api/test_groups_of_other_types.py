"""The coordinator and the handlers of the group APIs, for groups that aren't classic groups."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from ottla.broker.api import delete_groups, describe_groups, list_groups
from ottla.broker.authorizer import AllowEverything
from ottla.broker.group.group import GroupType
from ottla.broker.group.partitioning import partition_for
from ottla.broker.metrics.groups import METRICS
from ottla.protocol.errors import ErrorCode
from tests.unit.broker.api.stand_in import request_of
from tests.unit.broker.group.test_shard import ShareLikeGroup
from tests.unit.broker.test_group_service import PARTITIONS, Stage, virtually


async def stage_with(group: ShareLikeGroup) -> tuple[Stage, Any]:
    """A coordinator of two groups, `group` and a stable classic group `classic`; and a broker with it, for handlers."""
    stage = Stage()
    stage.lead()
    await stage.stable("classic")
    shard = stage.service._runtime.serving(partition_for(group.group_id, PARTITIONS))
    shard.core.groups[group.group_id] = group
    return stage, SimpleNamespace(groups=stage.service, authorizer=AllowEverything())


def test_groups_are_listed_with_their_types() -> None:
    async def scene() -> None:
        stage, broker = await stage_with(ShareLikeGroup("g", ["m"]))

        async def listed(states: list[str], types: list[str]) -> list[dict[str, Any]]:
            body = SimpleNamespace(states_filter=states, types_filter=types)
            answer = await list_groups.handle(broker, request_of(16, 5, "test"), body)
            return sorted(answer["groups"], key=lambda group: group["group_id"])

        classic = {"group_id": "classic", "protocol_type": "consumer", "group_state": "Stable", "group_type": "classic"}
        other = {"group_id": "g", "protocol_type": "share", "group_state": "Stable", "group_type": "share"}
        assert await listed([], []) == [classic, other]
        assert await listed([], ["Share"]) == [other]
        assert await listed(["stable"], ["classic"]) == [classic]
        assert await listed(["empty"], ["share"]) == []
        await stage.service.stop()

    virtually(scene)


def test_only_classic_groups_are_described() -> None:
    async def scene() -> None:
        stage, broker = await stage_with(ShareLikeGroup("g", ["m"]))

        async def described(version: int) -> dict[str, Any]:
            body = SimpleNamespace(groups=["g"], include_authorized_operations=False)
            answer = await describe_groups.handle(broker, request_of(15, version, "test"), body)
            group: dict[str, Any] = answer["groups"][0]
            return group

        assert (await described(5)).items() >= {"group_id": "g", "group_state": "Dead"}.items()
        assert "error_code" not in await described(5)
        newer = await described(6)
        assert newer["error_code"] is ErrorCode.group_id_not_found
        assert newer["error_message"] == "Group g is not a classic group."
        await stage.service.stop()

    virtually(scene)


def test_the_metrics_of_classic_groups_count_no_others() -> None:
    async def scene() -> None:
        stage, broker = await stage_with(ShareLikeGroup("g", ["m"]))
        assert stage.service.counts(GroupType.SHARE) == {"Stable": 1}
        [metric] = [metric for metric in METRICS if metric.name.endswith("_classic_group_count")]
        by_state = {dict(labels)["state"]: value for labels, value in metric.collect(broker)}
        assert {state: value for state, value in by_state.items() if value} == {"Stable": 1}
        await stage.service.stop()

    virtually(scene)


def test_a_group_of_another_type_is_woken_and_deleted() -> None:
    async def scene() -> None:
        group = ShareLikeGroup("g", ["m"], wake_ms=2_000_000)
        stage, broker = await stage_with(group)
        assert stage.service.heartbeat("g", "m", 1, None) is ErrorCode.unknown_member_id
        await asyncio.sleep(1_500)
        assert [now.steady_ms >= 2_000_000 for now in group.heard] == [True]
        body = SimpleNamespace(groups_names=["g"])
        for code, members in ((ErrorCode.non_empty_group, ["m"]), (ErrorCode.none, [])):
            group.members = members
            answer = await delete_groups.handle(broker, request_of(42, 2, "test"), body)
            assert answer["results"] == [{"group_id": "g", "error_code": code}]
        assert group.is_dead
        await stage.service.stop()

    virtually(scene)
