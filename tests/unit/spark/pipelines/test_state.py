"""The state in a checkpoint, read without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.spark.pipelines.state import query_state


def batch(checkpoint: Path, log: str, number: int, *lines: str) -> None:
    (checkpoint / log).mkdir(exist_ok=True)
    (checkpoint / log / str(number)).write_text("\n".join(lines))
    (checkpoint / log / f".{number}.crc").touch()


def test_the_last_batch_and_its_position(tmp_path: Path) -> None:
    assert query_state(tmp_path / "none") is None
    batch(tmp_path, "offsets", 0, "v1", "{}", '{"t":{"0":3}}')
    begun = query_state(tmp_path)
    assert begun is not None
    assert (begun.begun, begun.ended, begun.positions) == (0, -1, ())
    batch(tmp_path, "commits", 0, "v1", "{}")
    batch(tmp_path, "offsets", 1, "v1", "{}", '{"t":{"0":5}}', "-")
    state = query_state(tmp_path)
    assert state is not None
    assert (state.begun, state.ended, state.positions) == (1, 0, ({"t": {"0": 3}},))
    assert state.ended_ms > 0


def test_another_version_is_refused(tmp_path: Path) -> None:
    batch(tmp_path, "offsets", 0, "v2", "{}")
    batch(tmp_path, "commits", 0, "v2", "{}")
    with pytest.raises(ValueError, match="has the version v2"):
        query_state(tmp_path)
