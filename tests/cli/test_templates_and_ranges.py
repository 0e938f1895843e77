"""`consume` and `produce` by templates, offset ranges and ends, times of new records, and `topics delete --regex`."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest

from tests.cli.conftest import Ottla, Result


def test_a_template_prints_what_kcat_prints(ottla: Ottla, topic: str) -> None:
    written = ottla(
        "produce", topic, "-p", "1", "--key-separator", ":", "--header", "a=1", "--null-marker", "N",
        "--timestamp", "1700000000123", input=b"k:v\nN:N\n",
    )  # fmt: skip
    assert written.code == 0, written.stderr
    everything = ("--from-beginning", "-e", "-f")
    by_kcat = ottla("consume", topic, *everything, r"Topic %t [%p] at offset %o: key %k (%K): %s (%S) %h %T\n")
    assert by_kcat.stdout == (
        f"Topic {topic} [1] at offset 0: key k (1): v (1) a=1 1700000000123\n"
        f"Topic {topic} [1] at offset 1: key  (-1):  (-1) a=1 1700000000123\n"
    )
    assert ottla("consume", topic, *everything, "%d{strftime[%F %T]};%v;", "--null-marker", "NULL").stdout == (
        "2023-11-14 22:13:20;v;2023-11-14 22:13:20;NULL;"
    )


def test_what_a_template_printed_is_written_again(ottla: Ottla, topic: str) -> None:
    """A field whose length the template prints before it can have any content: line ends, no bytes at all, and null."""
    value = bytes(range(128)) * 3
    data = b"3,%d,key%s-1,0,0,-1,2,5,a\nb\nc\r\n" % (len(value), value)
    cut = ottla("produce", topic, "-p", "0", "--format", "%K,%S,%k%s", input=data[:-1])
    assert (cut.code, "the input ends inside a record" in cut.stderr) == (1, True), cut.stderr
    assert ottla("delete-records", topic, "--all", "--yes").code == 0
    written = ottla("produce", topic, "-p", "0", "--format", "%K,%S,%k%s", input=data)
    assert written.code == 0, written.stderr
    template = r"%p/%T:%K,%S,%k%s\n"
    printed = ottla("consume", f"{topic}:0", "--from-beginning", "-e", "-f", template).stdout.encode()
    assert ottla("produce", topic, "--format", template.replace("%p/", "0/"), "-p", "1", input=printed).code == 0
    copied = ottla("consume", f"{topic}:1", "--from-beginning", "-e", "-f", template).stdout.encode()
    assert copied == printed.replace(b"0/", b"1/")
    assert ottla("produce", topic, "--format", template, input=copied).code == 0
    assert ottla("consume", f"{topic}:1", "--from-beginning", "-e", "-f", template).stdout.encode() == copied * 2


def test_bytes_that_are_no_text_pass(ottla: Ottla, topic: str, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"\xff\xfe\t\x00\x80\n")
    assert ottla("produce", topic, "--file", str(tmp_path / "in"), "--format", r"%k\t%v\n").code == 0
    found = ottla("consume", topic, "--from-beginning", "-e", "--json").json_lines[0]
    assert (found["key_base64"], found["value_base64"]) == ("//4=", "AIA=")


def test_a_line_that_does_not_match_is_named_with_its_file(ottla: Ottla, topic: str, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"a:1\nb\nc:3\n")
    refused = ottla("produce", topic, "--file", str(tmp_path / "in"), "--format", r"%k:%v\n")
    assert refused.code == 1
    assert f"{tmp_path}/in, line 2: expected ':' after %k, found 'b\\n' (1 record written)" in refused.stderr
    assert ottla("consume", topic, "--from-beginning", "-e", "-f", "%k=%v;").stdout == "a=1;"
    lines = ottla("produce", topic, "--file", str(tmp_path / "in"), "--key-separator", ":")
    assert f"{tmp_path}/in, line 2: there is no key separator" in lines.stderr


def test_a_partition_of_the_input_that_does_not_exist(ottla: Ottla, topic: str) -> None:
    refused = ottla("produce", topic, "--format", r"%p %v\n", input=b"1 a\n2 b\n")
    assert (refused.code, "line 2: " in refused.stderr, "has no partition 2" in refused.stderr) == (1, True, True)
    assert ottla("consume", f"{topic}:1", "--from-beginning", "-e").stdout == "a\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("produce", "--format", "jsn"), "Did you mean 'json'?"),
        (("produce", "--format", "%k%v"), "it is ambiguous where"),
        (("produce", "--format", "%o %v"), "can't be read"),
        (("produce", "--format", "%k:%v", "--key-separator", ":"), "--key-separator and a template"),
        (("produce", "--format", "%k:%v", "--key", "a"), "--key and %k"),
        (("produce", "--format", "%p:%v", "-p", "0"), "--partition and %p"),
        (("produce", "--format", "%T:%v", "--timestamp", "1h"), "--timestamp and %T"),
        (("produce", "--format", "%v", "--value", "x"), "--value and --format"),
        (("produce", "--timestamp", "soon"), "is not a moment"),
        (("consume", "-f", "%q"), "Fields are %k key"),
        (("consume", "-f", r"%k\q"), "Escapes are"),
        (("consume", "-f", "json"), "Say --json"),
        (("consume", "-f", "%k", "--json"), "--json and --format"),
        (("consume", "-f", "%k", "-s", "key"), "--show and --format"),
        (("consume", "-f", "%k", "--separator", ";"), "--separator and --format"),
        (("consume", "-o", "5:5"), "nothing lies in the range"),
        (("consume", "-o", "1:2", "--until", "3"), "both give an end"),
        (("consume", "--until", "3"), "without a start"),
        (("consume", "-g", "g", "-o", "1:2"), "--offset and --group"),
        (("consume", "-g", "g", "--until", "2"), "--until and --group"),
    ],
)
def test_what_makes_no_sense_is_refused(ottla: Ottla, topic: str, options: tuple[str, ...], words: str) -> None:
    refused = ottla(options[0], topic, *options[1:], input=b"1\n")
    assert (refused.code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1), refused.stderr
    assert words in refused.stderr


def test_a_template_taken_for_a_file_is_explained(ottla: Ottla, topic: str) -> None:
    refused = ottla("produce", topic, "-f", r"%k:%v\n")
    assert (refused.code, "a template is given by --format" in refused.stderr) == (4, True), refused.stderr


def test_ranges_of_offsets_and_times(ottla: Ottla, topic: str) -> None:
    lines = b"".join(b"%d %d\n" % (1_700_000_000_000 + number * 1000, number) for number in range(10))
    assert ottla("produce", topic, "-p", "0", "--format", r"%T %v\n", input=lines).code == 0

    def read(*options: str) -> str:
        result = ottla("consume", f"{topic}:0", "-f", "%v", *options)
        assert (result.code, result.stderr) == (0, ""), result.stderr
        return result.stdout

    assert read("-o", "3:6") == "345"
    assert read("-o", ":2") == "01"
    assert read("-o", "8:end") == "89"
    assert read("-o", "-2:end") == "89"
    assert read("-o", "+7:end") == "789"
    assert read("-o", "@1700000003000:1700000006000") == "345"
    assert read("-o", "@2023-11-14T22:13:23Z:@2023-11-14T22:13:26Z") == "345"
    assert read("-o", "@:2023-11-14T22:13:22Z") == "01"
    assert read("-o", "@2023-11-14T22:13:20Z:+2s") == "01"
    assert read("-o", "3:@2023-11-14T22:13:26Z") == "345"
    assert read("--from-beginning", "--until", "2") == "01"
    assert read("--from-beginning", "--until", "2023-11-14T22:13:22Z") == "01"
    assert read("--timestamp", "1700000007500", "--until", "1m") == "89"
    assert read("-o", "3:6", "-n", "2") == "34"
    assert ottla("consume", topic, "-o", ":3", "-f", "%v").stdout == "012", "only partition 0 has records"


def test_an_end_that_is_not_there_yet_is_said_and_not_waited_for(ottla: Ottla, topic: str) -> None:
    assert ottla("produce", topic, "-p", "0", input=b"a\nb\n").code == 0
    read = ottla("consume", topic, "--from-beginning", "--until", "5")
    assert (read.code, read.stdout) == (0, "a\nb\n")
    assert f"no record has offset 4 yet in {topic}:0, {topic}:1" in read.stderr
    assert ottla("consume", topic, "-o", "@1h:@2100-01-01").stdout == "a\nb\n"


def test_a_range_whose_end_was_compacted_away_ends(ottla: Ottla) -> None:
    name = f"compacted-{uuid.uuid4().hex[:8]}"
    settings = ("cleanup.policy=compact", "segment.ms=100", "min.cleanable.dirty.ratio=0.01")
    created = ottla("topics", "create", name, *(part for setting in settings for part in ("-c", setting)))
    assert created.code == 0, created.stderr

    def read(*options: str) -> Result:
        return ottla("consume", name, "-f", "%o ", "--idle", "60", *options)

    deadline = time.monotonic() + 60
    while read("--from-beginning", "-e").stdout.startswith("0 ") or not read("-o", ":end").stdout:
        assert time.monotonic() < deadline
        assert ottla("produce", name, "--key-separator", ":", input=b"a:1\na:2\na:3\n").code == 0
        time.sleep(1)
    first = int(read("--from-beginning", "-e").stdout.split()[0])
    assert first > 0
    begun = time.monotonic()
    assert [read("-o", f":{end}").stdout for end in (1, first)] == ["", ""]
    assert read("-o", f":{first + 1}").stdout == f"{first} "
    assert time.monotonic() - begun < 30, "the read was ended by --idle, not by its range"
    assert ottla("topics", "delete", name, "--yes").code == 0


def test_times_of_new_records(ottla: Ottla, topic: str) -> None:
    produce = ("produce", topic, "-p", "0", "--timestamp", "2023-11-14T22:13:20Z")
    assert ottla(*produce, "--value", "a").code == 0
    own = b'{"value": "b"}\n{"value": "c", "timestamp": 5}\n'
    assert ottla(*produce, "--format", "json", input=own).code == 0
    assert ottla("produce", topic, "-p", "0", "--format", "%T,%v", input=b"7,d\n-1,e\n").code == 0
    found = ottla("consume", topic, "--from-beginning", "-e", "-f", "%v %T\n").stdout.split()
    times = dict(zip(found[::2], map(int, found[1::2]), strict=True))
    now = times.pop("e")
    assert abs(now / 1000 - time.time()) < 300
    assert times == {"a": 1_700_000_000_000, "b": 1_700_000_000_000, "c": 5, "d": 7}
    huge = ottla("produce", topic, "--format", "json", input=b'{"timestamp": 99999999999999999999}\n')
    assert (huge.code, "line 1: timestamp is not" in huge.stderr) == (1, True), huge.stderr


def test_topics_are_deleted_by_regular_expression(ottla: Ottla) -> None:
    prefix = f"tmp{uuid.uuid4().hex[:8]}"
    names = [f"{prefix}-a", f"{prefix}-b", f"x{prefix}-a", f"__{prefix}-a"]
    assert ottla("topics", "create", *names).code == 0

    def left() -> set[str]:
        return {row["name"] for row in ottla("topics", "list", "--internal", "--json").json} & set(names)

    asked = ottla("topics", "delete", "--regex", f"{prefix}-.*")
    assert (asked.code, asked.stdout) == (2, "")
    assert f"2 topics: {names[0]}, {names[1]}\n" in asked.stderr
    nothing = ottla("topics", "delete", "-r", f"{prefix}-a", f"{prefix}-c.*", "--yes")
    assert (nothing.code, f"no topic matches '{prefix}-c.*'" in nothing.stderr) == (4, True)
    assert ottla("topics", "delete", "-r", "(", "--yes").code == 2
    assert left() == set(names)
    deleted = ottla("topics", "delete", "-r", f"{prefix}-.*", f"{prefix}-c.*", "--if-exists", "--yes")
    assert deleted.stdout == f"Topic {names[0]} deleted.\nTopic {names[1]} deleted.\n", deleted.stderr
    assert left() == set(names[2:])
    assert ottla("topics", "delete", "-r", f".*{prefix}.*", "--yes", "--json").json == [{"name": names[2]}]
    assert ottla("topics", "delete", "-r", "zz-no-such", "--if-exists", "--yes", "--json").json == []
    assert ottla("topics", "delete", "-r", f"__{prefix}.*", "--yes", "--json").json == [{"name": names[3]}]


def test_the_groups_topic_is_not_matched(ottla: Ottla, topic: str) -> None:
    ottla("produce", topic, "--value", "x")
    assert ottla("consume", topic, "-g", f"g-{topic}", "--from-beginning", "-n", "1", "--idle", "20").code == 0
    for pattern in (".*consumer_offsets", "__.*offsets", "__consumer_offset."):
        assert ottla("topics", "delete", "-r", pattern, "--yes").code == 4
