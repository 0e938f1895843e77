"""A broker reports its own load, however many partitions it has."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.api import describe_configs
from ottla.broker.api.config_resources import ConfigResourceType
from ottla.broker.authorizer import AllowEverything
from ottla.settings import own


def loaded(topics: int, partitions: int) -> Any:
    """A broker with this number of topics, and of partitions in each topic. All partitions have counts of bytes."""
    held = [
        SimpleNamespace(topic=f"topic-{topic}", index=index, bytes_in=topic * 10 + index, bytes_out=1)
        for topic in range(topics)
        for index in range(partitions)
    ]
    held.append(SimpleNamespace(topic="idle", index=0, bytes_in=0, bytes_out=0))
    return SimpleNamespace(id=3, authorizer=AllowEverything(), image=None, partitions=held)


async def asked(broker: Any) -> dict[str, Any]:
    resource = SimpleNamespace(
        resource_type=ConfigResourceType.BROKER, resource_name="3", configuration_keys=[own.LOAD]
    )
    request = SimpleNamespace(resources=[resource], include_synonyms=False, include_documentation=False)
    answer = await describe_configs.handle(broker, None, request)  # type: ignore[arg-type]
    (found,) = answer["results"][0]["configs"]
    assert found["name"] == own.LOAD
    said: dict[str, Any] = json.loads(found["value"])
    return said


def test_the_load_names_each_partition_with_traffic() -> None:
    said = asyncio.run(asked(loaded(2, 2)))
    assert said["cpu_seconds"] > 0
    assert said["partitions"] == {
        "topic-0": {"1": [1, 1], "0": [0, 1]},
        "topic-1": {"0": [10, 1], "1": [11, 1]},
    }
    assert asyncio.run(asked(loaded(0, 0)))["partitions"] == {}


@pytest.mark.parametrize(("topics", "partitions"), [(1, 20_000), (20_000, 1), (200, 100)])
def test_the_loop_turns_while_the_load_of_twenty_thousand_partitions_is_told(topics: int, partitions: int) -> None:
    """Before the fix, the answer blocked the event loop for 18 ms."""

    async def turns() -> int:
        telling = asyncio.ensure_future(asked(loaded(topics, partitions)))
        count = 0
        while not telling.done():
            await asyncio.sleep(0)
            count += 1
        assert sum(map(len, (await telling)["partitions"].values())) == 20_000
        return count

    assert asyncio.run(turns()) >= 40
