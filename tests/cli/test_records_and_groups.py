"""`ottla produce`, `consume` and `groups` against a cluster: all records that are written come back unchanged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.conftest import OTTLA, TIMEOUT_S, Ottla


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(ottla: Ottla, topic: str, codec: str) -> None:
    written = ottla("produce", topic, "--codec", codec, "-p", "1", "--json", input=b"one\ntwo\n")
    assert written.json["partitions"] == [{"partition": 1, "first_offset": 0, "last_offset": 1}]
    assert ottla("consume", topic, "--from-beginning", "-e").stdout == "one\ntwo\n"


@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_every_acks(ottla: Ottla, topic: str, acks: str) -> None:
    assert ottla("produce", topic, "--acks", acks, "--value", "x").code == 0
    assert ottla("consume", topic, "--from-beginning", "-n", "1", "--idle", "10").stdout == "x\n"


def test_keys_headers_nulls_and_a_copy_by_json(ottla: Ottla, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "records"
    file.write_bytes(b"h:1,i:\tk|v\n\tNULL|NULL\n\tk|NULL\n")
    parse = ("--header-separator", "\\t", "--key-separator", "|", "--null-marker", "NULL", "--header", "all=yes")
    assert ottla("produce", topic, "--file", str(file), "-p", "0", *parse).code == 0
    assert ottla("produce", topic, "-p", "0", input=b"\xff\xfe\n").code == 0
    found = ottla("consume", topic, "--from-beginning", "-e", "--json").json_lines
    always = {"key": "all", "value": "yes"}
    assert [(record.get("key"), record.get("value"), record["headers"]) for record in found] == [
        ("k", "v", [always, {"key": "h", "value": "1"}, {"key": "i", "value": ""}]),
        (None, None, [always]),
        ("k", None, [always]),
        (None, None, []),
    ]
    assert found[3]["value_base64"] == "//4="

    lines = b"".join(json.dumps(record).encode() + b"\n" for record in found)
    assert ottla("produce", topic, "-p", "1", "--format", "json", input=lines).code == 0
    copy = ottla("consume", f"{topic}:1", "--from-beginning", "-e", "--json").json_lines
    assert [record | {"partition": 0} for record in copy] == found


def test_where_reading_starts_and_ends(ottla: Ottla, topic: str) -> None:
    ottla("produce", topic, "-p", "0", input=b"a\nb\nc\nd\n")

    def read(*options: str) -> str:
        return ottla("consume", topic, *options).stdout.replace("\n", "")

    assert read("--from-beginning", "-n", "3") == "abc"
    assert read("--offset", "-2", "-e") == "cd"
    assert read("--partition", "0", "--offset", "1", "-e") == "bcd"
    assert read("--timestamp", "1h", "-e") == "abcd"
    assert read("--timestamp", "2100-01-01", "-e") == ""
    assert read("-e") == ""
    assert read("--partition", "1", "--from-beginning", "-e") == ""
    assert read("--from-beginning", "--idle", "1") == "abcd"
    shown = ottla(
        "consume", "--topic-pattern", f"{topic[:-1]}.", "--from-beginning", "-n", "1", "-s", "topic,offset,key"
    )
    assert shown.stdout == f"{topic}\t0\tnull\ta\n"


def test_a_group(ottla: Ottla, topic: str) -> None:
    group = f"g-{topic}"
    ottla("produce", topic, "-p", "0", input=b"a\nb\nc\nd\n")
    read = ottla("consume", topic, "--group", group, "--from-beginning", "-n", "3", "--idle", "20")
    assert (read.stdout, read.code) == ("a\nb\nc\n", 0), read.stderr
    listed = {row["group"]: row for row in ottla("groups", "list", "--json").json}
    assert listed[group]["state"] == "Empty"
    described = ottla("groups", "describe", group, "--json").json[0]
    assert described["lag"] == 1
    assert described["partitions"][0]["committed_offset"] == 3
    assert ottla("consume", topic, "--group", group, "-n", "1", "--idle", "20").stdout == "d\n"

    shown = ottla("groups", "reset-offsets", group, "--topic", f"{topic}:0", "--shift-by", "-3", "--json").json
    assert [(row["old_offset"], row["new_offset"], row["executed"]) for row in shown] == [(4, 1, False)]
    for target, offset in (
        (("--to-earliest",), 0),
        (("--to-offset", "99"), 4),
        (("--to-time", "1h"), 0),
        (("--to-latest",), 4),
        (("--shift-by", "-1"), 3),
    ):
        moved = ottla("groups", "reset-offsets", group, "--all-topics", *target, "--execute", "--json")
        assert moved.json[0]["new_offset"] == offset, moved.stderr
    assert ottla("consume", topic, "--group", group, "-n", "1", "--idle", "20").stdout == "d\n"
    assert ottla("groups", "delete", "--yes", group, "--topic", topic).code == 0
    assert ottla("groups", "delete", "--yes", group).code == 0
    assert ottla("groups", "describe", group).code == 4


def test_a_group_with_a_member_is_left_alone(
    ottla: Ottla, topic: str, bootstrap: str, environment: dict[str, str]
) -> None:
    group = f"g-{topic}"
    ottla("produce", topic, "--value", "x")
    member = subprocess.Popen(
        [*OTTLA, "consume", topic, "-g", group, "--from-beginning", "-b", bootstrap],
        stdout=subprocess.PIPE,
        env=environment,
    )
    try:
        assert member.stdout is not None
        assert member.stdout.readline() == b"x\n"
        described = ottla("groups", "describe", group, "--json").json[0]
        assert described["state"] == "Stable"
        assert {item["partition"] for item in described["members"][0]["assignment"]} == {0, 1}
        for command in (
            ("delete", "--yes", group),
            ("reset-offsets", group, "--all-topics", "--to-earliest", "--execute"),
        ):
            refused = ottla("groups", *command)
            assert (refused.code, "active members" in refused.stderr) == (1, True), refused.stderr
    finally:
        member.send_signal(signal.SIGTERM)
        assert member.wait(TIMEOUT_S) == 143
        member.stdout.close()
    assert ottla("groups", "describe", group, "--json").json[0]["members"] == []


def test_reading_is_quiet_when_it_is_ended(
    topic: str, bootstrap: str, environment: dict[str, str], ottla: Ottla
) -> None:
    command = [*OTTLA, "consume", topic, "-b", bootstrap]
    for end, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (None, 141)):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        assert process.stdout is not None
        assert process.stderr is not None
        os.set_blocking(process.stdout.fileno(), False)
        deadline = time.monotonic() + TIMEOUT_S
        # The reader starts at the end of the topic, so only a record that it prints shows that it reads by now.
        while not process.stdout.read():
            assert time.monotonic() < deadline
            ottla("produce", topic, "--value", "x")
        if end is None:
            process.stdout.close()
        else:
            process.send_signal(end)
        assert process.wait(TIMEOUT_S) == code
        assert process.stderr.read() == b""
        process.stderr.close()
        process.stdout.close()
