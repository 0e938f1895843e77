"""The messages of `ottla dev` while it gives existing topics more replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.cli import moves
from ottla.cli.dev_growth import Growth
from ottla.cli.output import Output

BEFORE = {("orders", 0): (0,), ("orders", 1): (0,), ("alone", 0): (0,)}


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The moves that were begun. Each call of `under_way` returns one move fewer than the call before."""
    begun: list[Any] = []
    left: list[Any] = []

    def begin(_: Any, planned: Any) -> None:
        begun.append(planned)
        left.extend([*planned][count:] for count in range(len(planned) + 1))

    monkeypatch.setattr(moves, "assignments", lambda _: BEFORE)
    monkeypatch.setattr(
        moves, "resizing", lambda _, topics, factor: (None, {name: (0, 1, 2) for name in BEFORE if name[0] in topics})
    )
    monkeypatch.setattr(moves, "begin", begin)
    monkeypatch.setattr(moves, "under_way", lambda _: left.pop(0))
    return begun


def test_it_says_what_it_does_and_that_it_is_done(
    tmp_path: Path, begun: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    growth = Growth(tmp_path, known_brokers=1, brokers=3, kept={"alone"})
    cluster: Any = object()
    growth.carry_out(cluster, Output(as_json=False), lambda: False)
    assert begun == [{("orders", 0): (0, 1, 2), ("orders", 1): (0, 1, 2)}]
    told = capsys.readouterr().err
    assert "The cluster has more brokers now: 2 partitions get 3 replicas (orders)." in told
    assert told.rstrip().endswith("All of these partitions have 3 in-sync replicas now.")

    Growth(tmp_path, known_brokers=3, brokers=3, kept=()).carry_out(cluster, Output(as_json=False), lambda: False)
    assert len(begun) == 1, "no topic lacks replicas, so no move is begun"
    assert capsys.readouterr().err == ""
