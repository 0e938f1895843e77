"""Apache Kafka's own command-line tools, used as its documentation shows."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.peers.apache_kafka import tool
from tests.peers.ottla_broker import OttlaBroker


@pytest.fixture(scope="module")
def topic(bootstrap: str) -> str:
    """A topic of two partitions with 100 records, keys and headers, written by the console producer."""
    name = "tools"
    tool("topics", "--bootstrap-server", bootstrap, "--delete", "--topic", name, "--if-exists")
    created = tool(
        "topics",
        "--bootstrap-server",
        bootstrap,
        "--create",
        "--topic",
        name,
        "--partitions",
        "2",
        "--config",
        "retention.ms=86400000",
    )
    assert f"Created topic {name}" in created
    lines = "".join(f"h:{i}\tkey-{i}\tvalue {i}\n" for i in range(100))
    parse = ["--reader-property", "parse.key=true", "--reader-property", "parse.headers=true"]
    tool(
        "console-producer",
        "--bootstrap-server",
        bootstrap,
        "--topic",
        name,
        *parse,
        "--compression-codec",
        "zstd",
        input=lines,
    )
    return name


def test_topics(bootstrap: str, topic: str) -> None:
    assert topic in tool("topics", "--bootstrap-server", bootstrap, "--list").split()
    tool("topics", "--bootstrap-server", bootstrap, "--alter", "--topic", topic, "--partitions", "3")
    described = tool("topics", "--bootstrap-server", bootstrap, "--describe", "--topic", topic)
    assert re.search(
        rf"Topic: {topic}\s+TopicId: \S+\s+PartitionCount: 3\s+ReplicationFactor: 1\s+Configs: .*retention.ms=86400000",
        described,
    )
    assert len(re.findall(r"Partition: \d\s+Leader: 0\s+Replicas: 0\s+Isr: 0", described)) == 3
    assert tool("topics", "--bootstrap-server", bootstrap, "--describe", "--under-replicated-partitions").strip() == ""


def test_console_consumer(bootstrap: str, topic: str) -> None:
    printing = [
        part
        for name in ("key", "headers", "offset", "partition", "timestamp")
        for part in ("--formatter-property", f"print.{name}=true")
    ]
    limits = ["--from-beginning", "--max-messages", "100", "--timeout-ms", "30000"]
    lines = tool("console-consumer", "--bootstrap-server", bootstrap, "--topic", topic, *limits, *printing).splitlines()
    assert len(lines) == 100
    pattern = re.compile(r"CreateTime:\d+\tPartition:\d\tOffset:\d+\th:(\d+)\tkey-(\d+)\tvalue (\d+)")
    seen = [pattern.fullmatch(line) for line in lines]
    assert {match.groups() for match in seen if match} == {(str(i),) * 3 for i in range(100)}


def test_get_offsets(bootstrap: str, topic: str) -> None:
    def offsets(*arguments: str) -> int:
        printed = tool("get-offsets", "--bootstrap-server", bootstrap, "--topic", topic, *arguments)
        return sum(int(line.rsplit(":", 1)[1]) for line in printed.split())

    assert offsets() == 100
    assert offsets("--time", "earliest") == 0
    assert offsets("--time", "max-timestamp") > 0


def test_consumer_groups(bootstrap: str, topic: str, unique: Callable[[str], str]) -> None:
    group = unique("tools-group")
    limits = ["--from-beginning", "--max-messages", "100", "--timeout-ms", "30000"]
    tool("console-consumer", "--bootstrap-server", bootstrap, "--topic", topic, "--group", group, *limits)

    def groups(*arguments: str) -> str:
        return tool("consumer-groups", "--bootstrap-server", bootstrap, *arguments)

    assert group in groups("--list").split()
    described = groups("--describe", "--group", group)
    lags = re.findall(rf"^{group}\s+{topic}\s+\d\s+(\d+)\s+(\d+)\s+(\d+)", described, re.M)
    assert sum(int(current) for current, _, _ in lags) == 100
    assert {lag for _, _, lag in lags} == {"0"}
    assert re.search(rf"{group}\s+.*Empty\s+0", groups("--describe", "--group", group, "--state"))
    groups("--reset-offsets", "--to-earliest", "--group", group, "--topic", topic, "--execute")
    assert re.search(rf"{group}\s+{topic}\s+0\s+0\s+\d+", groups("--describe", "--group", group))
    assert "Request succeed" in groups("--delete-offsets", "--group", group, "--topic", topic)
    assert "was successful" in groups("--delete", "--group", group)
    assert group not in groups("--list").split()


def test_configs(bootstrap: str, topic: str) -> None:
    entity = ["--bootstrap-server", bootstrap, "--entity-type", "topics", "--entity-name", topic]
    assert "Completed updating config" in tool(
        "configs", *entity, "--alter", "--add-config", "max.message.bytes=2000000,cleanup.policy=[compact,delete]"
    )
    described = tool("configs", *entity, "--describe")
    assert "max.message.bytes=2000000" in described
    assert "cleanup.policy=compact,delete" in described
    tool("configs", *entity, "--alter", "--delete-config", "max.message.bytes,cleanup.policy")
    assert "max.message.bytes" not in tool("configs", *entity, "--describe")
    broker = ["--bootstrap-server", bootstrap, "--entity-type", "brokers", "--entity-name", "0"]
    tool("configs", *broker, "--alter", "--add-config", "log.cleaner.backoff.ms=20000")
    assert "log.cleaner.backoff.ms=20000" in tool("configs", *broker, "--describe")
    tool("configs", *broker, "--alter", "--delete-config", "log.cleaner.backoff.ms")
    assert "log.retention.hours=168" in tool("configs", *broker, "--describe", "--all")


def test_delete_records(bootstrap: str, topic: str, tmp_path: Path) -> None:
    request = tmp_path / "delete.json"
    request.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 5}], "version": 1}))
    printed = tool("delete-records", "--bootstrap-server", bootstrap, "--offset-json-file", str(request))
    assert re.search(rf"partition: {topic}-0\s+low_watermark: 5", printed)


def test_log_dirs(bootstrap: str, topic: str) -> None:
    printed = tool("log-dirs", "--bootstrap-server", bootstrap, "--describe", "--topic-list", topic)
    described = json.loads(printed[printed.index("{") :])
    directories = [directory for broker in described["brokers"] for directory in broker["logDirs"]]
    assert {directory["error"] for directory in directories} == {None}
    sizes = {p["partition"]: p["size"] for directory in directories for p in directory["partitions"]}
    assert sizes[f"{topic}-0"] > 0


def test_leader_election(bootstrap: str, topic: str) -> None:
    arguments = ["--election-type", "preferred", "--topic", topic, "--partition", "0"]
    assert "Valid replica already elected" in tool("leader-election", "--bootstrap-server", bootstrap, *arguments)


def test_verifiable_producer_and_consumer(bootstrap: str, unique: Callable[[str], str]) -> None:
    name = unique("verifiable")
    tool("topics", "--bootstrap-server", bootstrap, "--create", "--topic", name, "--partitions", "3")
    produced = tool(
        "verifiable-producer",
        "--bootstrap-server",
        bootstrap,
        "--topic",
        name,
        "--max-messages",
        "5000",
        "--acks",
        "-1",
    )
    summary = json.loads(produced.splitlines()[-1])
    assert (summary["sent"], summary["acked"]) == (5000, 5000)
    arguments = [
        "--group-id",
        unique("verifiable-group"),
        "--max-messages",
        "5000",
        "--group-protocol",
        "classic",
        "--reset-policy",
        "earliest",
    ]
    consumed = tool("verifiable-consumer", "--bootstrap-server", bootstrap, "--topic", name, *arguments)
    events = [json.loads(line) for line in consumed.splitlines() if line.startswith("{")]
    assert sum(event["count"] for event in events if event["name"] == "records_consumed") == 5000
    assert all(event.get("success", True) for event in events)


def test_performance_tools(bootstrap: str, unique: Callable[[str], str]) -> None:
    name = unique("performance")
    tool("topics", "--bootstrap-server", bootstrap, "--create", "--topic", name, "--partitions", "2")
    size = ["--num-records", "50000", "--record-size", "100", "--throughput", "-1"]
    produced = tool("producer-perf-test", "--topic", name, *size, "--bootstrap-server", bootstrap)
    assert "50000 records sent" in produced
    consumed = tool(
        "consumer-perf-test",
        "--bootstrap-server",
        bootstrap,
        "--topic",
        name,
        "--num-records",
        "50000",
        "--timeout",
        "30000",
    )
    assert re.search(r", 50000, ", consumed)


def test_dump_log_reads_our_segments(ottla: OttlaBroker | None, topic: str) -> None:
    if ottla is None:
        pytest.skip("this test hasn't started the broker, and can't read its folder")
    folder = ottla.data / f"{topic}-1"
    segment = folder / f"{0:020d}.log"
    dumped = tool("dump-log", "--deep-iteration", "--print-data-log", "--files", str(segment))
    assert "isvalid: true" in dumped
    assert "isvalid: false" not in dumped
    assert "compresscodec: zstd" in dumped
    assert re.search(r"\| offset: 0 .*key: key-\d+ payload: value \d+", dumped)


def test_dump_log_finds_our_indexes_sane(
    ottla: OttlaBroker | None, bootstrap: str, unique: Callable[[str], str]
) -> None:
    """A log of several segments, with entries in each index."""
    if ottla is None:
        pytest.skip("this test hasn't started the broker, and can't read its folder")
    name = unique("indexed")
    small = ["--config", "segment.bytes=1048576", "--config", "file.delete.delay.ms=1000"]
    tool("topics", "--bootstrap-server", bootstrap, "--create", "--topic", name, "--partitions", "1", *small)
    size = ["--num-records", "30000", "--record-size", "100", "--throughput", "-1"]
    tool("producer-perf-test", "--topic", name, *size, "--bootstrap-server", bootstrap)
    folder = ottla.data / f"{name}-0"
    logs = sorted(folder.glob("*.log"))
    assert len(logs) > 2
    assert len(sorted(folder.glob("*.snapshot"))) >= len(logs) - 1
    sealed = logs[0]
    files = ",".join(str(sealed.with_suffix(suffix)) for suffix in (".index", ".timeindex", ".log"))
    checked = tool("dump-log", "--index-sanity-check", "--files", files)
    assert checked.count("passed sanity check") == 2
    verified = tool("dump-log", "--verify-index-only", "--files", files)
    assert not re.search(r"mismatch|unreadable|not found|Unexpected|do not", verified, re.I), verified[-2000:]
    snapshot = tool("dump-log", "--files", str(sorted(folder.glob("*.snapshot"))[0]))
    assert re.search(r"producerId: \d+ producerEpoch: 0", snapshot), snapshot


def test_dump_log_reads_our_group_log(
    ottla: OttlaBroker | None, bootstrap: str, topic: str, unique: Callable[[str], str]
) -> None:
    if ottla is None:
        pytest.skip("this test hasn't started the broker, and can't read its folder")
    group = unique("dumped-group")
    limits = ["--from-beginning", "--max-messages", "10", "--timeout-ms", "30000"]
    tool("console-consumer", "--bootstrap-server", bootstrap, "--topic", topic, "--group", group, *limits)
    segments = [
        str(path) for path in ottla.data.glob("__consumer_offsets-*/*.log") if group.encode() in path.read_bytes()
    ]
    assert len(segments) == 1
    dumped = tool("dump-log", "--offsets-decoder", "--print-data-log", "--files", *segments)
    assert re.search(rf'"type":"1".*"group":"{group}","topic":"{topic}"', dumped)
    assert re.search(rf'"type":"2".*"group":"{group}".*"protocolType":"consumer"', dumped)
