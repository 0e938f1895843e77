"""A newcomer's mistakes: each one gives one helpful line on stderr, nothing on stdout, and its own exit code."""

from __future__ import annotations

import json
import os
import socket

import pytest

from tests.cli.conftest import Ottla

NOT_FOUND, USAGE, UNREACHABLE, FAILED = 4, 2, 3, 1
HERE = "ottla-test-topic"  # a topic that the fixture creates

MISTAKES = [
    (["topics", "creat", "x"], USAGE, "Did you mean 'create'?"),
    (["topics", "create"], USAGE, "Missing argument"),
    (["topics", "create", "x", "-p", "many"], USAGE, "--partitions"),
    (["topics", "create", "x", "-c", "retention.ms"], USAGE, "is not NAME=VALUE"),
    (["topics", "create", "x", "--assignment", "a"], USAGE, "is not an assignment"),
    (["topics", "create", "x", "--assignment", "1", "-p", "2"], USAGE, "Leave the numbers out"),
    (["topics", "create", "a b"], FAILED, "a b"),
    (["topics", "create", "x", "-p", "0"], FAILED, "partitions"),
    (["topics", "create", "x", "-r", "99"], FAILED, "eplicat"),
    (["topics", "create", "x", "-c", "retention.mss=1"], FAILED, "Did you mean 'retention.ms'?"),
    (["topics", "create", "x", "-c", "retention.ms=soon"], FAILED, "retention.ms"),
    (["topics", "create", HERE], FAILED, "exists already"),
    (["topics", "describe", "ottla-test-topik"], NOT_FOUND, f"Did you mean '{HERE}'?"),
    (["topics", "alter", HERE], USAGE, "nothing to change"),
    (["topics", "alter", HERE, "-p", "1"], FAILED, "can only grow"),
    (["topics", "delete", "nope", "--yes"], NOT_FOUND, "doesn't exist"),
    (["configs", "describe", "topik", HERE], USAGE, "Did you mean 'topic'?"),
    (["configs", "describe", "topic", "nope"], NOT_FOUND, "doesn't exist"),
    (["configs", "describe", "topic", HERE, "-s", "retention"], NOT_FOUND, "no setting 'retention'"),
    (["configs", "describe", "broker", "77"], NOT_FOUND, "there is no broker 77"),
    (["configs", "describe", "broker", "one"], USAGE, "is not a broker id"),
    (["configs", "alter", "topic", HERE, "-s", "retention.mss=1"], NOT_FOUND, "Did you mean 'retention.ms'?"),
    (["configs", "alter", "topic", HERE, "-s", "retention.ms=soon"], FAILED, "soon"),
    (["configs", "alter", "topic", HERE], USAGE, "nothing to change"),
    (["produce", "nope"], NOT_FOUND, "`ottla topics create nope` creates this one"),
    (["produce", HERE, "--acks", "2"], USAGE, "Say one of: all"),
    (["produce", HERE, "--codec", "gzipp"], USAGE, "Did you mean 'gzip'?"),
    (["produce", HERE, "-p", "7"], NOT_FOUND, "has no partition 7"),
    (["produce", HERE, "-f", "/nowhere/at/all"], NOT_FOUND, "there is no /nowhere/at/all"),
    (["produce", HERE, "-v", "x", "-f", "y"], USAGE, "both given"),
    (["consume"], USAGE, "which topics?"),
    (["consume", "nope"], NOT_FOUND, "doesn't exist"),
    (["consume", "--topic-pattern", "("], USAGE, "is not a regular expression"),
    (["consume", "--topic-pattern", "(", "-g", "g"], USAGE, "is not a regular expression"),
    (["consume", "--topic-pattern", "no-such-.*"], NOT_FOUND, "no topic matches"),
    (["consume", HERE, "--offset", "first"], USAGE, "is not an offset"),
    (["consume", HERE, "--offset", "999"], NOT_FOUND, "has no offset 999"),
    (["consume", HERE, "--timestamp", "tomorrow"], USAGE, "is not a moment"),
    (["consume", HERE, "--from-beginning", "--offset", "1"], USAGE, "more than one position"),
    (["consume", HERE, "-g", "g", "--offset", "1"], USAGE, "reset-offsets"),
    (["consume", HERE, "-s", "kee"], USAGE, "Did you mean 'key'?"),
    (["groups", "describe", "nope"], NOT_FOUND, "`ottla groups list`"),
    (["groups", "delete", "nope", "--yes"], NOT_FOUND, "doesn't exist"),
    (["groups", "reset-offsets", "g", "--all-topics"], USAGE, "where to?"),
    (["groups", "reset-offsets", "g", "--to-latest"], USAGE, "which partitions?"),
    (["offsets", f"{HERE}:9"], NOT_FOUND, "has no partition 9"),
    (["delete-records", HERE], USAGE, "which records?"),
    (["delete-records", HERE, "--before", "99", "--yes"], FAILED, "ends at offset 0"),
    (["log-dirs", "--broker", "77"], NOT_FOUND, "there is no broker 77"),
    (["topics", "list", "--context", "nope"], USAGE, "both a bootstrap address and a context"),
    (["contexts", "use", "nope"], NOT_FOUND, "there is no context 'nope'"),
    (["contexts", "add", "x", "host:port"], USAGE, "is not a port"),
    (["metadata", "ls", "--store", "/nowhere/at/all"], NOT_FOUND, "there is no metadata store"),
    (["topics", "delete", HERE], USAGE, "Say --yes"),
    (["groups", "delete", "nope"], USAGE, "Say --yes"),
    (["--bootstrap", "127.0.0.1:1", "topics", "list"], USAGE, "after the command"),
    (["topics", "--json", "list"], USAGE, "after the command"),
    (["frobnicate"], USAGE, "No such command"),
    (["broker", "frobnicate"], USAGE, "No such command"),
    (["broker", "nowhere/server.properties"], NOT_FOUND, "there is no nowhere/server.properties"),
    (["broker", "-c", "one.properties", "two.properties"], USAGE, "No such command"),
    (["broker", "server.properties", "stop"], USAGE, "give the options after the name of the command"),
    (["topics", "list", "--frob"], USAGE, "No such option"),
]


@pytest.fixture(scope="module", autouse=True)
def _topic(ottla: Ottla) -> None:
    assert ottla("topics", "create", HERE, "-p", "2", "--if-not-exists").code == 0


@pytest.mark.parametrize(("arguments", "code", "words"), MISTAKES, ids=[" ".join(mistake[0]) for mistake in MISTAKES])
def test_a_mistake_is_one_helpful_line(ottla: Ottla, arguments: list[str], code: int, words: str) -> None:
    result = ottla(*arguments)
    assert result.code == code, result.stderr
    assert result.stdout == ""
    assert words in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    assert "kafka." not in result.stderr


@pytest.mark.parametrize(
    ("address", "code", "words"),
    [
        ("127.0.0.1:1", UNREACHABLE, "connection refused"),
        ("no-such-host.invalid:9092", UNREACHABLE, "no such host"),
        ("127.0.0.1:1,127.0.0.1:2", UNREACHABLE, "127.0.0.1:2"),
        ("127.0.0.1:many", USAGE, "is not a port"),
        ("https://127.0.0.1", USAGE, "is not HOST:PORT"),
    ],
)
def test_wrong_addresses(ottla: Ottla, address: str, code: int, words: str) -> None:
    result = ottla("topics", "list", "--bootstrap", address)
    assert (result.code, result.stdout, result.stderr.count("\n")) == (code, "", 1)
    assert words in result.stderr


def test_a_port_where_something_else_listens(ottla: Ottla) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        result = ottla("topics", "list", "-b", f"127.0.0.1:{server.getsockname()[1]}", "--timeout", "1")
    assert result.code == UNREACHABLE
    assert "doesn't answer as a Kafka broker" in result.stderr


def test_an_error_for_programs(ottla: Ottla) -> None:
    error = json.loads(ottla("topics", "describe", "nope", "--json").stderr)["error"]
    assert (error["exit_code"], error["kafka_code"]) == (NOT_FOUND, 3)
    assert error["message"] == "topic 'nope' doesn't exist"
    assert "ottla topics list" in error["remedy"]


def test_the_number_of_the_bad_line_and_what_was_written_before_it(ottla: Ottla) -> None:
    result = ottla("produce", HERE, "--key-separator", ":", input=b"a:1\nb:2\nc\n")
    assert result.code == FAILED
    assert "line 3" in result.stderr
    assert "2 records written" in result.stderr
    assert ottla("delete-records", HERE, "--all", "--yes").code == 0


def test_a_record_that_is_too_large(ottla: Ottla, topic: str) -> None:
    result = ottla("produce", topic, input=b"x" * 3_000_000)
    assert (result.code, "max.message.bytes" in result.stderr) == (FAILED, True)


def test_debug_shows_where_it_happened(ottla: Ottla) -> None:
    assert "Traceback" in ottla("topics", "describe", "nope", "--debug").stderr


def test_contexts_are_used(ottla: Ottla, bootstrap: str) -> None:
    nothing = {"OTTLA_BOOTSTRAP": ""}
    assert ottla("contexts", "add", "here", bootstrap).code == 0
    assert ottla("contexts", "add", "gone", "127.0.0.1:1").code == 0
    assert ottla("contexts", "list", "--json").json == [
        {"name": "gone", "bootstrap": "127.0.0.1:1", "command_config": None, "current": False},
        {"name": "here", "bootstrap": bootstrap, "command_config": None, "current": True},
    ]
    assert ottla("topics", "list", **nothing).code == 0
    assert ottla("topics", "list", "--context", "gone", **nothing).code == UNREACHABLE
    assert ottla("contexts", "use", "gone").code == 0
    assert ottla("topics", "list", **nothing).code == UNREACHABLE
    assert ottla("topics", "list", **nothing, OTTLA_CONTEXT="here").code == 0
    for name in ("gone", "here"):
        assert ottla("contexts", "delete", name).code == 0
    assert ottla("contexts", "list", "--json").json == []


def test_a_full_disk_is_said(ottla: Ottla) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    from subprocess import run

    from tests.cli.conftest import OTTLA

    with open("/dev/full", "wb") as full:
        done = run([*OTTLA, "version"], stdout=full, capture_output=False, stderr=-1)
    assert done.returncode == FAILED
    assert b"no space left" in done.stderr
