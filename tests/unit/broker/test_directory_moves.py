"""Which moves between log directories may begin."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest

from ottla.broker.directory_moves import DirectoryMoves
from ottla.protocol.errors import ErrorCode, KafkaError

HERE, THERE, FULL_OF_ERRORS, CORDONED = "/here", "/there", "/failed", "/cordoned"
TOPIC_ID = UUID(int=1)
KEY = (TOPIC_ID, 0)


class Stage:
    """A replica of t-0 in /here, and a topic `elsewhere` without a replica on this broker."""

    def __init__(self) -> None:
        self.partition = SimpleNamespace(topic_id=TOPIC_ID, index=0, offline=False, log="t-0")
        self.logs = SimpleNamespace(
            paths=[HERE, THERE, FULL_OF_ERRORS, CORDONED],
            failed={FULL_OF_ERRORS: OSError()},
            cordoned={CORDONED},
            directory_of=lambda log: HERE,
            logs={KEY: "t-0"},
            interrupted_moves=[],
        )
        self.begun: list[str] = []
        logs: Any = self.logs
        partitions: Any = SimpleNamespace(
            get=lambda topic, index: self.partition if (topic, index) == ("t", 0) else None
        )
        image: Any = SimpleNamespace(topics={"t": 1, "elsewhere": 1})
        tasks: Any = SimpleNamespace(spawn=self._spawn)
        self.moves = DirectoryMoves(logs, partitions, lambda: image, Mock(), tasks)

    def _spawn(self, coroutine: Any, name: str) -> None:
        coroutine.close()
        self.begun.append(name)


@pytest.mark.parametrize(
    ("topic", "directory", "error"),
    [
        ("t", "/nowhere", ErrorCode.log_dir_not_found),
        ("t", FULL_OF_ERRORS, ErrorCode.kafka_storage_error),
        ("t", CORDONED, ErrorCode.invalid_replica_assignment),
        ("elsewhere", THERE, ErrorCode.replica_not_available),
        ("unknown", THERE, ErrorCode.unknown_topic_or_partition),
    ],
)
def test_a_move_that_cannot_be_made_is_refused(topic: str, directory: str, error: ErrorCode) -> None:
    stage = Stage()
    with pytest.raises(KafkaError) as refused:
        stage.moves.begin(topic, 0, directory)
    assert refused.value.code is error
    assert stage.begun == []


def test_a_replica_that_is_offline_is_not_moved() -> None:
    stage = Stage()
    stage.partition.offline = True
    with pytest.raises(KafkaError) as refused:
        stage.moves.begin("t", 0, THERE)
    assert refused.value.code is ErrorCode.kafka_storage_error


def test_a_move_begins_once() -> None:
    stage = Stage()
    stage.moves.begin("t", 0, f"{THERE}/")
    stage.moves.begin("t", 0, THERE)
    stage.moves.begin("t", 0, HERE)  # where it is already
    assert stage.begun == ["move of 't-0' to /there"]


def test_a_cordoned_directory_keeps_what_it_has() -> None:
    stage = Stage()
    stage.logs.cordoned = {HERE}
    stage.moves.begin("t", 0, HERE)
    assert stage.begun == []


def test_moves_that_a_stop_interrupted_begin_anew() -> None:
    stage = Stage()
    stage.logs.interrupted_moves = [(TOPIC_ID, 0, THERE), (TOPIC_ID, 9, THERE), (None, 0, THERE)]
    stage.moves.resume()
    assert stage.begun == ["move of 't-0' to /there"]
