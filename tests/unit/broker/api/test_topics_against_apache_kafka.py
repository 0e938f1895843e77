"""The topic and cluster APIs answer as Apache Kafka 4.3.1 did to `tests.peers.topic_exchanges`, including the messages.

The exchanges leave out two answers in which Ottla differs from Kafka on purpose. To the first Metadata request about an
automatically created topic, Kafka answers that the topic is unknown. At one invalid name among many in
DescribeTopicPartitions, Kafka fails the whole request.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.peers.topic_exchanges import CREATE, EXCHANGES, RECORDED, play
from tests.unit.broker.api.stand_in import broker_stand_in


async def _answers(folder: Path) -> list[Any]:
    async def settle() -> None:
        """Takes the place of Kafka's wait for a change to become visible. Returns at once, because Ottla answers only
        when the image shows the change."""

    async with broker_stand_in(folder) as broker:
        return await play(broker.ask, settle)


@pytest.fixture(scope="module")
def recorded() -> list[Any]:
    loaded: list[Any] = json.loads(RECORDED.read_text())
    return loaded


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return asyncio.run(_answers(tmp_path_factory.mktemp("metadata")))


def _comparable(answer: Any, key: int) -> Any:
    """The answer without the messages about settings, whose texts are Ottla's own."""
    if key == CREATE:
        for topic in answer["topics"]:
            if topic["error_code"] == 40:
                topic["error_message"] = bool(topic["error_message"])
    return answer


@pytest.mark.parametrize("index", range(len(EXCHANGES)))
def test_answers_as_apache_kafka(index: int, recorded: list[Any], answers: list[Any]) -> None:
    key = EXCHANGES[index][0]
    assert _comparable(answers[index], key) == _comparable(recorded[index], key), EXCHANGES[index]
