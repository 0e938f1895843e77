"""Details of answers that misled users in earlier versions: exit codes, names and numbers in messages, and JSON that
had two shapes for the same thing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Ottla
from tests.cli.test_processes import Dev, run

Environment = dict[str, str]


@pytest.mark.parametrize(
    "command",
    [
        "produce {topic} --file {missing}",
        "reassign status {missing}",
        "reassign execute {missing}",
        "broker --config {missing}",
        "broker status --config {missing}",
        "log dump {missing}",
        "log verify {missing}",
        "metadata restore {missing} --store {missing}.db",
        "adopt {missing}",
    ],
)
def test_a_file_that_is_missing_has_one_exit_code(ottla: Ottla, topic: str, tmp_path: Path, command: str) -> None:
    missing = tmp_path / "missing"
    result = ottla(*command.format(topic=topic, missing=missing).split())
    assert (result.code, f"there is no {missing}" in result.stderr) == (4, True), result.stderr


def test_an_offset_outside_is_answered_with_the_offsets_that_there_are(ottla: Ottla, topic: str) -> None:
    assert ottla("produce", topic, "-p", "0", input=b"a\nb\nc\n").code == 0
    outside = ottla("consume", f"{topic}:0", "--offset", "4")
    assert (outside.code, "The partition has offsets 0 to 2; the next record gets offset 3." in outside.stderr) == (
        4,
        True,
    ), outside.stderr
    assert ottla("delete-records", f"{topic}:0", "--all", "--yes").code == 0
    emptied = ottla("consume", f"{topic}:0", "--offset", "1")
    assert (emptied.code, "The partition is empty; the next record gets offset 3." in emptied.stderr) == (4, True), (
        emptied.stderr
    )


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("-e",), "--until-end"),
        (("--offset", "3"), "--offset"),
        (("--timestamp", "1h"), "--timestamp"),
        (("--partition", "0"), "partitions"),
    ],
)
def test_what_does_not_go_with_a_group_is_named(ottla: Ottla, topic: str, options: tuple[str, ...], named: str) -> None:
    refused = ottla("consume", topic, "-g", "g", *options)
    assert refused.code == 2
    assert f"{named} and --group don't go together" in refused.stderr
    if named != "partitions":
        assert "which partitions it reads" not in refused.stderr


def test_an_offset_that_is_moved_into_the_log_is_said(ottla: Ottla, topic: str) -> None:
    assert ottla("produce", topic, "-p", "0", input=b"a\nb\n").code == 0
    moved = ottla("groups", "reset-offsets", "g-far", "--topic", f"{topic}:0", "--to-offset", "99", "--json")
    assert [(row["wished_offset"], row["new_offset"]) for row in moved.json] == [(99, 2)]
    message = json.loads(moved.stderr)["warning"]["message"]
    assert message == f"{topic}:0 has no offset 99: 2 is used instead"
    exact = ottla("groups", "reset-offsets", "g-far", "--topic", f"{topic}:0", "--to-offset", "1")
    assert "warning" not in exact.stderr


def test_headers_have_one_shape_wherever_they_are_printed(tmp_path: Path, environment: Environment) -> None:
    dev = Dev(tmp_path / "data", environment | {"OTTLA_TOPICS": "orders"})
    at = ("-b", dev.bootstrap)
    written = run(environment, "produce", "orders", "-H", "a=1", "-H", "b=", "-k", "k", "-v", "v", *at)
    assert written.returncode == 0, written.stderr
    consumed = json.loads(run(environment, "consume", "orders", "--from-beginning", "-e", "--json", *at).stdout)
    assert dev.stop() == 0
    (log,) = (tmp_path / "data" / "broker-0" / "orders-0").glob("*.log")
    (record,) = json.loads(run(environment, "log", "dump", str(log), "--records", "--json").stdout)["records"]
    assert record["headers"] == consumed["headers"] == [{"key": "a", "value": "1"}, {"key": "b", "value": ""}]
    assert {name: consumed[name] for name in record} == record


def test_a_directory_that_is_ottlas_already_is_not_adopted(tmp_path: Path, environment: Environment) -> None:
    Dev(tmp_path / "data", environment | {"OTTLA_TOPICS": "orders"}).stop()
    own = tmp_path / "data" / "broker-0"
    for options in (("--dry-run",), ()):
        refused = run(environment, "adopt", str(own), *options)
        assert refused.returncode == 1
        assert f"{own} is Ottla's already" in refused.stderr
    assert not (own / "metadata.sqlite").exists()


def test_meta_properties_of_another_version_are_refused(tmp_path: Path, environment: Environment) -> None:
    data = tmp_path / "data"
    Dev(data, environment).stop()
    properties = data / "broker-0" / "meta.properties"
    properties.write_text(properties.read_text().replace("version=1", "version=2"))
    refused = run(environment, "dev", "--port", "0", "--data", str(data))
    assert refused.returncode == 1
    assert "meta.properties is of version 2, and this broker knows only 1" in refused.stderr
