"""Batches in one file: each once, whatever happens between two writes."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.spark.pipelines.text_file import LedgerError, TextFile

QUERY, OTHER = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"


def written(path: Path, batch: int, *lines: str, query_id: str = QUERY) -> str:
    """The file after a batch of a query that has just started."""
    file = TextFile(path, query_id)
    file.claim(known=batch > 0 and path.exists())
    file.write(batch, lines)
    return path.read_text()


def torn(*lines: str) -> Iterator[str]:
    yield from lines
    raise ConnectionError


def test_a_batch_that_comes_again_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out.txt"
    assert written(path, 0, "a", "b") == "a\nb\n"
    assert written(path, 1, "c") == "a\nb\nc\n"
    assert written(path, 1, "c") == "a\nb\nc\n"
    assert written(path, 0, "a", "b") == "a\nb\nc\n", "an older batch"
    assert written(path, 2, "ä") == "a\nb\nc\nä\n"
    ledger = json.loads(path.with_name("out.txt.batches").read_text())
    assert ledger == {"query": QUERY, "batch": 2, "before": 6, "after": 9}


def test_a_batch_that_was_torn_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    written(path, 0, "a")
    with pytest.raises(ConnectionError):
        TextFile(path, QUERY).write(1, torn("b"))
    assert written(path, 1, "b", "c") == "a\nb\nc\n"


def test_lines_that_were_there_before_stay(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("head\n")
    written(path, 0, "a")
    assert written(path, 0, "a") == "head\na\n"


def test_an_older_batch_takes_its_lines(tmp_path: Path) -> None:
    """Rows of Spark that nobody takes leave the state of their partitions unwritten."""
    path = tmp_path / "out.txt"
    written(path, 0, "a")
    written(path, 1, "b")
    lines = iter(["a", "a"])
    TextFile(path, QUERY).write(0, lines)
    assert next(lines, None) is None


def test_a_new_checkpoint_is_refused(tmp_path: Path) -> None:
    """Its first batches have the numbers of batches that are in the file: their lines would be lost."""
    path = tmp_path / "out.txt"
    for batch in range(3):
        written(path, batch, f"old{batch}")
    with pytest.raises(LedgerError, match=f"belongs to another query .id {QUERY}., and this query's id is {OTHER}"):
        written(path, 0, "new0", query_id=OTHER)
    with pytest.raises(LedgerError, match="belongs to another query"):
        TextFile(path, OTHER).write(3, ["new3"])
    assert path.read_text() == "old0\nold1\nold2\n"


def test_a_gap_between_batches_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    written(path, 0, "a")
    with pytest.raises(LedgerError, match="has the batches to 0, and batch 2 comes"):
        written(path, 2, "c")
    with pytest.raises(ConnectionError):
        TextFile(path, QUERY).write(1, torn("b"))
    with pytest.raises(LedgerError, match="has the batches to 0, and batch 2 comes"):
        written(path, 2, "c")


@pytest.mark.parametrize(("content", "size"), [("a\nbb", 4), ("a\nbb\nforeign\n", 13), ("", 0)])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_file_that_another_program_changed_is_refused(tmp_path: Path, content: str, size: int, batch: int) -> None:
    """Cut inside its last batch, extended, or emptied: both when the last batch comes again and when the next comes."""
    path = tmp_path / "out.txt"
    written(path, 0, "a")
    written(path, 1, "bb")
    path.write_text(content)
    with pytest.raises(LedgerError, match=f"has {size} bytes, and had 5 after its last batch"):
        written(path, batch, "c")
    assert path.read_text() == content


def test_a_query_may_go_on_in_another_file(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    assert written(path, 5, "f") == "f\n"
    assert written(path, 5, "f") == "f\n"
    assert written(path, 6, "g") == "f\ng\n"


def test_a_ledger_that_is_gone_or_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    file = TextFile(path, QUERY)
    file.claim(known=False)
    ledger = path.with_name("out.txt.batches")
    ledger.unlink()
    with pytest.raises(LedgerError, match="was deleted"):
        file.write(0, ["a"])
    with pytest.raises(LedgerError, match="was deleted"):
        file.claim(known=True)
    for text in ("{", '{"query": "p.out", "batch": 1, "length": 4}'):
        ledger.write_text(text)
        with pytest.raises(LedgerError, match="is no ledger"):
            file.write(0, ["a"])


def test_a_file_that_another_process_writes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    written(path, 0, "a")
    with open(path, "ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(LedgerError, match="another process writes"):
            written(path, 1, "b")
    assert written(path, 1, "b") == "a\nb\n"
