"""The notes in checkpoints and targets, written before queries start, and compared before the next start."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ottla.spark.pipelines import notes
from ottla.spark.pipelines.paths import local_path, resolved
from ottla.spark.pipelines.refusals import SpecError
from ottla.spark.pipelines.spec import Pipeline, parse


def pipeline(where: Path, *sinks: dict[str, Any], **other: Any) -> Pipeline:
    spec = {"name": "p", "source": {"topic": "t"}, "sinks": list(sinks), "checkpoint": str(where / "c")}
    return parse(spec | other)


def started(each: Pipeline, start: str = "") -> None:
    notes.compare(each)
    notes.note(each, start)


def refused(each: Pipeline) -> list[str]:
    with pytest.raises(SpecError) as error:
        notes.compare(each)
    return error.value.lines


def test_paths_have_one_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("c")
    assert {resolved(each) for each in ("c", "./c/", "link", f"file:{tmp_path}/c", f"file://{tmp_path}/c")} == {
        str(tmp_path / "c")
    }
    assert resolved("s3a://b/c/") == "s3a://b/c"
    assert local_path("s3a://b/c") is None
    assert local_path("file:/a%20b") == Path("/a b")


def test_a_pipeline_finds_its_notes_again(tmp_path: Path) -> None:
    each = pipeline(tmp_path, {"file": f"{tmp_path}/f"}, {"files": f"{tmp_path}/d"}, {"topic": "a"})
    notes.compare(each)
    assert list(tmp_path.iterdir()) == [], "a comparison writes nothing"
    started(each)
    ids = [json.loads((tmp_path / "c" / sink / "metadata").read_text())["id"] for sink in ("file-1", "files-2")]
    assert json.loads((tmp_path / "f.batches").read_text())["query"] == ids[0]
    assert json.loads((tmp_path / "d/_owner.json").read_text()) == {"query": ids[1]}
    started(each)
    assert [json.loads((tmp_path / "c" / sink / "metadata").read_text())["id"] for sink in ("file-1", "files-2")] == ids


@pytest.mark.parametrize("key", ["file", "files"])
def test_a_new_checkpoint_is_refused_by_its_target(tmp_path: Path, key: str) -> None:
    each = pipeline(tmp_path, {key: f"{tmp_path}/x", "name": "out"})
    started(each)
    shutil.rmtree(tmp_path / "c")
    assert f"{key} {tmp_path}/x belongs to another query (id " in refused(each)[0]
    with pytest.raises(SpecError, match="belongs to another query"):
        notes.note(each, "")


def test_a_new_checkpoint_is_refused_by_a_table_of_dead_letters(tmp_path: Path) -> None:
    started(pipeline(tmp_path, {"console": 1}, errors={"table": f"{tmp_path}/x"}))
    shutil.rmtree(tmp_path / "c")
    other = pipeline(tmp_path, {"console": 1}, errors={"table": f"{tmp_path}/x"})
    assert refused(other)[0].startswith(f"p.dead-letters: table {tmp_path}/x belongs to another query (id ")


def test_a_directory_that_spark_wrote_without_an_owner_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d/_spark_metadata").mkdir(parents=True)
    assert "belongs to another query (id unknown)" in refused(pipeline(tmp_path, {"files": f"{tmp_path}/d"}))[0]


def test_a_sink_with_a_new_name_is_refused(tmp_path: Path) -> None:
    started(pipeline(tmp_path, {"topic": "a"}))
    assert "`name: topic-1` goes on where it was" in refused(pipeline(tmp_path, {"topic": "a", "name": "out"}))[0]


def test_a_deleted_note_lets_a_query_go_on_elsewhere_and_a_deleted_ledger_doesnt(tmp_path: Path) -> None:
    each = pipeline(tmp_path, {"file": f"{tmp_path}/f"})
    started(each)
    (tmp_path / "f.batches").unlink()
    with pytest.raises(SpecError, match=r"p\.file-1: .*f\.batches was deleted"):
        notes.note(each, "")
    other = pipeline(tmp_path, {"file": f"{tmp_path}/g"})
    assert "wrote to file" in refused(other)[0]
    (tmp_path / "c/file-1/pipeline.json").unlink()
    started(other)
    assert (tmp_path / "g.batches").exists()


def test_files_that_are_no_notes_are_refused(tmp_path: Path) -> None:
    each = pipeline(tmp_path, {"files": f"{tmp_path}/d"}, {"file": f"{tmp_path}/f"})
    started(each)
    (tmp_path / "d/_owner.json").write_text("[]")
    (tmp_path / "f.batches").write_text("{")
    assert [line.partition(" is no ")[0] for line in refused(each)] == [
        f"p.files-1: {tmp_path}/d/_owner.json",
        f"p.file-2: {tmp_path}/f.batches",
    ]
    (tmp_path / "c/file-2/pipeline.json").write_text('{"a": 1}')
    assert refused(each)[0].startswith(f"{tmp_path}/c/file-2/pipeline.json is no note of a query")


def test_notes_need_this_machines_file_system(tmp_path: Path) -> None:
    there = {"checkpoint": "s3a://b/c"}
    started(pipeline(tmp_path, {"topic": "a"}, **there))
    assert list(tmp_path.iterdir()) == []
    assert refused(pipeline(tmp_path, {"files": "s3a://b/d"})) == [
        "p.files-1: files s3a://b/d isn't on this machine's file system, where the target's owner is noted"
    ]
    latest = {"topic": "t", "start": "latest"}
    assert refused(pipeline(tmp_path, {"file": f"{tmp_path}/f"}, source=latest, **there)) == [
        "p: file-1 needs a checkpoint on this machine's file system, and s3a://b/c isn't",
        "p: start: latest needs a checkpoint on this machine's file system, and s3a://b/c isn't",
    ]


def test_the_first_start_is_kept(tmp_path: Path) -> None:
    each = pipeline(tmp_path, {"topic": "a"})
    assert notes.start_noted(each.checkpoint) is None
    started(each, '{"t": {"0": 7}}')
    started(each, '{"t": {"0": 9}}')
    assert notes.start_noted(each.checkpoint) == {"t": {"0": 7}}
