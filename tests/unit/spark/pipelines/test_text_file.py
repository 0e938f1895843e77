"""Batches in one file: each once, whatever happens between two writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.spark.pipelines.text_file import LedgerError, TextFile


def written(path: Path, batch: int, *lines: str) -> str:
    TextFile(path, "p.out").write(batch, lines)
    return path.read_text()


def test_a_batch_that_comes_again_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out.txt"
    assert written(path, 0, "a", "b") == "a\nb\n"
    assert written(path, 1, "c") == "a\nb\nc\n"
    assert written(path, 1, "c") == "a\nb\nc\n"
    assert written(path, 0, "a", "b") == "a\nb\nc\n", "an older batch"
    assert written(path, 2, "ä") == "a\nb\nc\nä\n"


def test_a_batch_that_was_torn_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    written(path, 0, "a")

    def torn() -> Iterator[str]:
        yield "b"
        raise ConnectionError

    with pytest.raises(ConnectionError):
        TextFile(path, "p.out").write(1, torn())
    assert written(path, 1, "b", "c") == "a\nb\nc\n"


def test_lines_that_were_there_before_stay(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("head\n")
    written(path, 0, "a")
    assert written(path, 0, "a") == "head\na\n"


def test_a_file_of_another_query_or_a_shorter_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    written(path, 0, "a", "b")
    written(path, 1, "c")
    with pytest.raises(LedgerError, match="belongs to another query"):
        TextFile(path, "q.out").write(0, ["x"])
    path.write_text("a\n")
    with pytest.raises(LedgerError, match="has 2 bytes, and had 4"):
        TextFile(path, "p.out").write(2, ["d"])
    ledger = path.with_name("out.txt.batches")
    assert json.loads(ledger.read_text()) == {"query": "p.out", "batch": 1, "length": 4}
    ledger.write_text("{")
    with pytest.raises(LedgerError, match="is no ledger"):
        TextFile(path, "p.out").write(2, ["d"])
