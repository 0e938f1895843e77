"""The values of the metrics of transactions."""

from __future__ import annotations

from pathlib import Path
from time import time
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.metrics.transactions import LATE_MS, METRICS
from ottla.broker.transaction.ending import Ending
from ottla.broker.transaction.metadata import V2
from ottla.settings.config import BrokerConfig
from tests.unit.broker.test_group_service import virtually
from tests.unit.broker.test_transaction_service import Stage
from tests.unit.broker.test_transactional_appends import begin, led

LATE = "kafka_server_replicamanager_partitionswithlatetransactionscount"
IDS = "ottla_transaction_coordinator_transactional_ids"


def values(name: str, broker: Any) -> dict[str, float]:
    (metric,) = [each for each in METRICS if each.name == name]
    return {"".join(value for _, value in labels): sample for labels, sample in metric.collect(broker)}  # type: ignore[misc]


def test_ids_are_counted_by_what_they_do() -> None:
    async def scene() -> None:
        stage = Stage()
        broker = SimpleNamespace(transactions=stage.service)
        assert values(IDS, broker) == {"open": 0, "ending": 0, "idle": 0}
        await stage.init("new")
        producer = await stage.begun("a")
        await stage.begun("b")
        assert values(IDS, broker) == {"open": 2, "ending": 0, "idle": 1}
        await stage.service.end("a", Ending(*producer, True, V2))
        assert values(IDS, broker) == {"open": 1, "ending": 1, "idle": 1}
        await stage.write_markers()
        assert values(IDS, broker) == {"open": 1, "ending": 0, "idle": 2}
        await stage.service.stop()
        assert values(IDS, broker) == {"open": 0, "ending": 0, "idle": 0}

    virtually(scene)


@pytest.mark.parametrize(("age_ms", "late"), [(LATE_MS + 900_000 - 60_000, 0), (LATE_MS + 900_000 + 60_000, 1)])
def test_a_transaction_that_is_open_for_too_long_is_late(tmp_path: Path, age_ms: int, late: int) -> None:
    partition = led(tmp_path, 0)
    config = BrokerConfig.from_sources("node.id=0\nlog.dirs=/x\nlisteners=PLAINTEXT://127.0.0.1:9092\n")
    broker = SimpleNamespace(partitions=[partition], config=config)
    assert values(LATE, broker) == {"": 0}
    begin(partition)
    (entry,) = [entry for _, entry in partition.log.producers.items()]
    entry.last_timestamp = int(time() * 1000) - age_ms
    assert values(LATE, broker) == {"": late}
    partition.append_marker(7, 0, 0, True, 1)
    partition.resign("the test")
    assert values(LATE, broker) == {"": 0}
