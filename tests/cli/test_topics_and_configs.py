"""`ottla topics`, `configs`, `cluster`, `brokers`, `log-dirs`, `offsets`, `delete-records` against a cluster."""

from __future__ import annotations

from tests.cli.conftest import Ottla


def test_a_topics_life(ottla: Ottla) -> None:
    created = ottla("topics", "create", "life", "-p", "2", "-r", "1", "-c", "retention.ms=5000", "--json")
    assert created.code == 0, created.stderr
    assert created.json[0]["name"] == "life"
    assert created.json[0]["partitions"] == 2
    assert ottla("topics", "create", "life").code == 1
    assert ottla("topics", "create", "life", "--if-not-exists").code == 0

    listed = {row["name"]: row for row in ottla("topics", "list", "--json").json}
    assert listed["life"]["replication_factor"] == 1
    assert listed["life"]["topic_id"] == created.json[0]["topic_id"]

    altered = ottla("topics", "alter", "life", "-p", "3", "-c", "segment.ms=60000", "--reset", "retention.ms")
    assert altered.code == 0, altered.stderr
    described = ottla("topics", "describe", "life", "--json").json[0]
    assert described["configs"] == {"segment.ms": "60000"}
    assert [row["partition"] for row in described["partitions"]] == [0, 1, 2]
    assert all(row["leader"] is not None and row["isr"] == row["replicas"] for row in described["partitions"])
    table = ottla("topics", "describe", "life").stdout.splitlines()
    assert table[0].startswith("life   id ")
    assert table[1].split() == ["PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "OFFLINE"]

    assert ottla("topics", "delete", "--yes", "life").code == 0
    assert ottla("topics", "delete", "--yes", "life").code == 4
    assert ottla("topics", "delete", "--yes", "life", "--if-exists").code == 0
    assert "life" not in ottla("topics", "list").stdout


def test_validate_only_changes_nothing(ottla: Ottla, topic: str) -> None:
    assert "could be created" in ottla("topics", "create", "never", "--validate-only").stdout
    assert ottla("topics", "describe", "never").code == 4
    assert ottla("topics", "alter", topic, "-p", "9", "-c", "retention.ms=1", "--validate-only").code == 0
    described = ottla("topics", "describe", topic, "--json").json[0]
    assert (len(described["partitions"]), described["configs"]) == (2, {})


def test_settings(ottla: Ottla, topic: str) -> None:
    changed = ottla("configs", "alter", "topic", topic, "--set", "retention.ms=7000", "--set", "segment.ms=9000")
    assert changed.code == 0, changed.stderr
    settings = {row["name"]: row for row in ottla("configs", "describe", "topic", topic, "--json").json}
    assert settings["retention.ms"]["value"] == "7000"
    assert settings["retention.ms"]["source"] == "DYNAMIC_TOPIC_CONFIG"
    every = ottla("configs", "describe", "topic", topic, "--all", "--json").json
    assert {"cleanup.policy", "max.message.bytes"} <= {row["name"] for row in every}
    synonyms = ottla("configs", "describe", "topic", topic, "-s", "retention.ms", "--synonyms", "--json").json
    assert synonyms[0]["synonyms"][0]["source"] == "DYNAMIC_TOPIC_CONFIG"

    assert ottla("configs", "alter", "topic", topic, "--append", "cleanup.policy=compact").code == 0
    value = ottla("configs", "describe", "topic", topic, "-s", "cleanup.policy", "--json").json[0]["value"]
    assert sorted(value.split(",")) == ["compact", "delete"]
    assert ottla("configs", "alter", "topic", topic, "--subtract", "cleanup.policy=delete").code == 0
    assert ottla("configs", "alter", "topic", topic, "--reset", "retention.ms", "--reset", "segment.ms").code == 0
    left = {row["name"]: row["value"] for row in ottla("configs", "describe", "topic", topic, "--json").json}
    assert left["cleanup.policy"] == "compact"
    assert "retention.ms" not in left


def test_the_cluster(ottla: Ottla, bootstrap: str, topic: str) -> None:
    cluster = ottla("cluster", "--json").json
    assert cluster["bootstrap"] == bootstrap
    assert cluster["brokers"] == 1
    assert cluster["without_leader"] == 0
    assert {"topics", "internal_topics"} <= cluster.keys()
    broker = ottla("brokers", "list", "--json").json[0]
    assert f"{broker['host']}:{broker['port']}" == bootstrap
    assert broker["controller"] is True
    assert ottla("configs", "describe", "broker", str(broker["id"])).code == 0
    ottla("produce", topic, "-p", "1", "--value", "x" * 1000)
    directories = ottla("log-dirs", "--topic", topic, "--json").json
    sizes = {row["partition"]: row["size_bytes"] for directory in directories for row in directory["replicas"]}
    assert sizes[0] == 0
    assert sizes[1] > 1000
    assert len(ottla("log-dirs", "--topic", topic, "--partitions").stdout.splitlines()) == 3


def test_offsets_and_deleting_records(ottla: Ottla, topic: str) -> None:
    assert ottla("produce", topic, "-p", "0", input=b"a\nb\nc\n").code == 0
    rows = ottla("offsets", topic, "--time", "1h", "--json").json
    assert [(row["start_offset"], row["end_offset"], row["offset"]) for row in rows] == [(0, 3, 0), (0, 0, None)]
    assert ottla("offsets", f"{topic}:0", "--time", "max-timestamp").code == 0

    unasked = ottla("delete-records", f"{topic}:0", "--before", "2")
    assert (unasked.code, "--yes" in unasked.stderr) == (2, True)
    deleted = ottla("delete-records", f"{topic}:0", "--before", "2", "--yes", "--json")
    assert deleted.json == [{"topic": topic, "partition": 0, "start_offset": 2, "deleted": 2}]
    assert ottla("consume", topic, "--from-beginning", "--until-end").stdout == "c\n"
    assert ottla("delete-records", topic, "--all", "--yes").code == 0
    assert [row["count"] for row in ottla("offsets", topic, "--json").json] == [0, 0]
    assert ottla("topics", "alter", topic, "--config", "cleanup.policy=compact").code == 0
    refused = ottla("delete-records", topic, "--all", "--yes")
    assert refused.code == 1
    assert "is only compacted" in refused.stderr


def test_a_secret_that_is_set_is_not_repeated(ottla: Ottla) -> None:
    name = "listener.name.nowhere.plain.sasl.jaas.config"
    settings = ("--set", f"{name}=typed-secret", "--set", "max.connections=1000000")
    altered = ottla("configs", "alter", "broker", "0", *settings, "--json")
    assert altered.json["set"] == {name: "***", "max.connections": "1000000"}
    assert "typed-secret" not in altered.stdout + altered.stderr
    assert ottla("configs", "alter", "broker", "0", "--reset", name, "--reset", "max.connections").code == 0
