"""A broker's configuration: layers, refused configurations and their messages, listeners, derived values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import pytest

from ottla.settings.config import BrokerConfig, InvalidConfiguration
from ottla.settings.contradiction import Contradiction
from ottla.settings.listeners import Endpoint
from ottla.settings.topic_config import TopicConfig

# The given properties, and all messages with which the start is refused.
REFUSED = [
    ("log.segment.byts=1", ["log.segment.byts=1: there is no such setting; the nearest is log.segment.bytes"]),
    ("frobnicate.zyx=1", ["frobnicate.zyx=1: there is no such setting"]),
    ("log.segment.bytes=10", ["log.segment.bytes=10: must be at least 1048576"]),
    ("log.segment.bytes=1e7", ["log.segment.bytes=1e7: must be a whole number"]),
    ("log.segment.bytes=1_048_576", ["log.segment.bytes=1_048_576: must be a whole number"]),
    ("log.segment.bytes=99999999999", ["log.segment.bytes=99999999999: must fit in 32 bits"]),
    ("log.segment.bytes=", ["log.segment.bytes=: must be a whole number"]),
    ("log.cleaner.min.cleanable.ratio=2", ["log.cleaner.min.cleanable.ratio=2: must be between 0 and 1"]),
    ("log.cleaner.min.cleanable.ratio=x", ["log.cleaner.min.cleanable.ratio=x: must be a number"]),
    ("compression.gzip.level=0", ["compression.gzip.level=0: must be between 1 and 9, or -1"]),
    (
        "compression.type=brotli",
        ["compression.type=brotli: must be one of uncompressed, zstd, lz4, snappy, gzip, producer"],
    ),
    ("auto.create.topics.enable=yes", ["auto.create.topics.enable=yes: must be true or false"]),
    ("log.cleanup.policy=compact,shred", ["log.cleanup.policy=compact,shred: must be among compact, delete"]),
    ("log.dirs=/a,,/b", ["log.dirs=/a,,/b: must not have empty entries"]),
    ("log.dirs=", ["log.dirs=: must not be empty"]),
    ("controller.quorum.voters=1@h", ["controller.quorum.voters=1@h: must look like id@host:port"]),
    ("ssl.keystore.password=a\nssl.cipher.suites=a,,b", ["ssl.cipher.suites=a,,b: must not have empty entries"]),
    (
        "num.partitions=0\nnum.partition=1\nmin.insync.replicas=-1",
        [
            "num.partition=1: there is no such setting; the nearest is num.partitions",
            "num.partitions=0: must be at least 1",
            "min.insync.replicas=-1: must be at least 1",
        ],
    ),
    ("log.retention.ms=0", ["log.retention.ms=0: must be at least 1, or -1 for no limit"]),
    ("broker.id=4", ["broker.id=4: must be the same as node.id, which is 1"]),
    (
        "group.min.session.timeout.ms=9000\ngroup.max.session.timeout.ms=8000",
        ["group.min.session.timeout.ms=9000: must not exceed group.max.session.timeout.ms, which is 8000"],
    ),
    (
        "ottla.buffered.memory.bytes.max=1048576",
        [
            "socket.request.max.bytes=104857600: must not exceed ottla.buffered.memory.bytes.max, which is 1048576",
        ],
    ),
    ("max.connections.per.ip=0", ["max.connections.per.ip=0: is allowed only with max.connections.per.ip.overrides"]),
    (
        "max.connections.per.ip.overrides=host",
        ["max.connections.per.ip.overrides=host: must look like host:count,host:count"],
    ),
    (
        "inter.broker.listener.name=PLAINTEXT\nsecurity.inter.broker.protocol=PLAINTEXT",
        ["Only one of inter.broker.listener.name and security.inter.broker.protocol should be set."],
    ),
    (
        "ssl.keystore.pasword=geheim",
        ["ssl.keystore.pasword=(hidden): there is no such setting; the nearest is ssl.keystore.password"],
    ),
    ("listeners=PLAINTEXT", ["listeners=PLAINTEXT: 'PLAINTEXT' is not NAME://host:port"]),
    (
        "listeners=PLAINTEXT://:99999",
        ["listeners=PLAINTEXT://:99999: 'PLAINTEXT://:99999' has a port outside 0 to 65535"],
    ),
    (
        "listeners=INSIDE://:9092",
        ["listeners=INSIDE://:9092: INSIDE has no protocol in listener.security.protocol.map"],
    ),
    (
        "listener.security.protocol.map=A:PLAIN",
        [
            "listener.security.protocol.map=A:PLAIN: 'A:PLAIN' names no known protocol "
            "(known are PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)"
        ],
    ),
    (
        "listeners=A://:9092,B://:9092\nlistener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT\n"
        "inter.broker.listener.name=A",
        ["listeners=A://:9092,B://:9092: uses the port 9092 twice"],
    ),
    (
        "advertised.listeners=PLAINTEXT://0.0.0.0:9092",
        [
            "advertised.listeners=PLAINTEXT://0.0.0.0:9092: has the address 0.0.0.0, which no client can reach",
        ],
    ),
    (
        "advertised.listeners=PLAINTEXT://h:9092,B://h:1\nlistener.security.protocol.map=PLAINTEXT:PLAINTEXT,B:PLAINTEXT",
        ["advertised.listeners=PLAINTEXT://h:9092,B://h:1: names B, which is not in listeners"],
    ),
    (
        "inter.broker.listener.name=B",
        ["inter.broker.listener.name=B: is B, but no advertised listener has this name"],
    ),
    (
        "controller.listener.names=PLAINTEXT",
        ["listeners=PLAINTEXT://:9092: leaves no listener for clients, because all are controller listeners"],
    ),
    ("a=\\u12", ["the properties file, line 2: \\u12 is not \\u and four hexadecimal digits"]),
]


@pytest.mark.parametrize(("text", "problems"), REFUSED)
def test_refused(text: str, problems: list[str]) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        BrokerConfig.from_sources("node.id=1\n" + text)
    assert list(caught.value.problems) == problems


def test_a_number_of_its_own_is_needed() -> None:
    with pytest.raises(InvalidConfiguration, match=r"^node\.id: every broker needs a number of its own, 0 or greater$"):
        BrokerConfig.from_sources("")


def test_a_password_is_never_shown() -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        BrokerConfig.from_sources("node.id=1\nssl.keystore.password=secret\nnum.partitions=0")
    assert "secret" not in str(caught.value)


WARNED = [
    (
        "zookeeper.connect=zoo:2181",
        "zookeeper.connect has no effect: there is no ZooKeeper: ottla.metadata.store names the metadata store",
    ),
    (
        "inter.broker.protocol.version=2.8",
        "inter.broker.protocol.version has no effect: brokers of one cluster agree on versions by themselves",
    ),
    (
        "log.message.format.version=2.8",
        "log.message.format.version has no effect: there is one record format: batches of version 2",
    ),
    (
        "num.network.threads=3",
        "num.network.threads has no effect: one event loop serves everything, so thread counts have no meaning",
    ),
    (
        "listener.name.outside.ssl.provider=x",
        "listener.name.outside.ssl.provider has no effect: it names Java code, which has no place in a Python process",
    ),
    (
        "listener.name.outside.sasl.kerberos.service.name=x",
        "listener.name.outside.sasl.kerberos.service.name has no effect: there is no GSSAPI yet",
    ),
    ("rsm.config.bucket=b", "rsm.config.bucket has no effect: there is no tiered storage yet"),
]


@pytest.mark.parametrize(("text", "warning"), WARNED)
def test_accepted_with_one_warning(text: str, warning: str) -> None:
    assert BrokerConfig.from_sources("node.id=1\n" + text).warnings == (warning,)


def test_honoured_settings_bring_no_warning() -> None:
    assert BrokerConfig.from_sources("node.id=1\nnum.partitions=3\nlog.dirs=/a").warnings == ()


def test_command_line_outweighs_environment_outweighs_file() -> None:
    text = "node.id=1\nnum.partitions=1\nlog.segment.bytes=1048577\nlog.retention.bytes=1"
    environment = {"OTTLA_NUM_PARTITIONS": "2", "OTTLA_LOG_SEGMENT_BYTES": "1048578", "PATH": "/bin"}
    config = BrokerConfig.from_sources(text, {"num.partitions": "3"}, environment)
    assert config["num.partitions"] == 3
    assert config["log.segment.bytes"] == 1048578
    assert config["log.retention.bytes"] == 1


def test_environment_names() -> None:
    config = BrokerConfig.from_sources("node.id=1", {}, {"OTTLA_LOG_LEVEL": "DEBUG", "OTTLA_ZOOKEEPER_CONNECT": "z"})
    assert config["ottla.log.level"] == "DEBUG"
    assert [warning.partition(" ")[0] for warning in config.warnings] == ["zookeeper.connect"]


@pytest.mark.parametrize(
    "variable", ["OTTLA_BOOTSTRAP", "OTTLA_TOPICS", "OTTLA_CONFIG_FILE", "OTTLA_CONTEXT", "OTTLA_TEST_BOOTSTRAP"]
)
def test_variables_of_other_parts_are_left_alone(variable: str) -> None:
    assert BrokerConfig.from_sources("node.id=1", {}, {variable: "x"}).warnings == ()


def test_kubernetes_service_variables_are_left_alone() -> None:
    variables = {
        "OTTLA_SERVICE_HOST": "10.0.0.1",
        "OTTLA_SERVICE_PORT": "9092",
        "OTTLA_SERVICE_PORT_KAFKA": "9092",
        "OTTLA_PORT": "tcp://10.0.0.1:9092",
        "OTTLA_PORT_9092_TCP": "tcp://10.0.0.1:9092",
        "OTTLA_PORT_9092_TCP_PROTO": "tcp",
    }
    assert BrokerConfig.from_sources("node.id=1", {}, variables).warnings == ()


def test_a_misspelt_variable_stops_the_start() -> None:
    expected = "^OTTLA_NUM_PARTITION=2: there is no such setting; the nearest is OTTLA_NUM_PARTITIONS$"
    with pytest.raises(InvalidConfiguration, match=expected):
        BrokerConfig.from_sources("node.id=1", {}, {"OTTLA_NUM_PARTITION": "2"})


def test_node_id_and_broker_id_are_one() -> None:
    assert BrokerConfig.from_sources("broker.id=5").node_id == 5
    assert BrokerConfig.from_sources("node.id=5")["broker.id"] == 5


DERIVED = [
    ("", "retention.ms", 604_800_000),
    ("log.retention.hours=2", "retention.ms", 7_200_000),
    ("log.retention.hours=2\nlog.retention.minutes=3", "retention.ms", 180_000),
    ("log.retention.hours=2\nlog.retention.minutes=3\nlog.retention.ms=4", "retention.ms", 4),
    ("log.retention.hours=-1", "retention.ms", -1),
    ("log.retention.minutes=-1", "retention.ms", -1),
    ("log.roll.hours=2", "segment.ms", 7_200_000),
    ("log.roll.hours=2\nlog.roll.ms=5", "segment.ms", 5),
    ("log.roll.jitter.hours=1", "segment.jitter.ms", 3_600_000),
    ("log.flush.scheduler.interval.ms=9", "flush.ms", 9),
    ("log.flush.scheduler.interval.ms=9\nlog.flush.interval.ms=8", "flush.ms", 8),
    ("message.max.bytes=7", "max.message.bytes", 7),
    ("log.cleanup.policy=compact, delete", "cleanup.policy", ("compact", "delete")),
]


@pytest.mark.parametrize(("text", "name", "value"), DERIVED)
def test_what_broker_settings_mean_for_topics(text: str, name: str, value: object) -> None:
    assert BrokerConfig.from_sources("node.id=1\n" + text).topic_defaults[name] == value


def test_a_topics_own_settings_come_first_and_bad_ones_are_passed_over() -> None:
    config = BrokerConfig.from_sources("node.id=1\nlog.retention.ms=5")
    topic = TopicConfig.resolve(config, {"retention.ms": "6", "segment.bytes": "x", "no.such": "1"})
    assert (topic["retention.ms"], topic["segment.bytes"]) == (6, 1 << 30)


def test_log_directories() -> None:
    assert BrokerConfig.from_sources("node.id=1\nlog.dir=/a").log_dirs == ("/a",)
    assert BrokerConfig.from_sources("node.id=1\nlog.dir=/a\nlog.dirs=/b, /c").log_dirs == ("/b", "/c")


def test_listeners_of_a_file_for_apache_kafka() -> None:
    config = BrokerConfig.from_sources(
        "process.roles=broker,controller\nnode.id=1\ncontroller.listener.names=CONTROLLER\n"
        "listeners=INSIDE://10.0.0.1:9092,outside://:9094,CONTROLLER://:9093\n"
        "advertised.listeners=INSIDE://broker-1:9092,OUTSIDE://[::1]:31000\ninter.broker.listener.name=INSIDE\n"
        "listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT"
    )
    assert config.listeners.opened == (
        Endpoint("INSIDE", "10.0.0.1", 9092, "PLAINTEXT"),
        Endpoint("OUTSIDE", "", 9094, "PLAINTEXT"),
    )
    assert config.listeners.advertised == (
        Endpoint("INSIDE", "broker-1", 9092, "PLAINTEXT"),
        Endpoint("OUTSIDE", "::1", 31000, "PLAINTEXT"),
    )
    assert config.listeners.inter_broker == "INSIDE"
    told = [str(endpoint) for endpoint in config.listeners.advertised]
    assert told == ["INSIDE://broker-1:9092", "OUTSIDE://[::1]:31000"]


def test_one_listener_needs_no_inter_broker_name() -> None:
    config = BrokerConfig.from_sources("node.id=1\nlisteners=A://:1\nlistener.security.protocol.map=A:PLAINTEXT")
    assert config.listeners.inter_broker == "A"


def test_an_ipv4_and_an_ipv6_listener_share_a_port() -> None:
    config = BrokerConfig.from_sources(
        "node.id=1\nlisteners=A://127.0.0.1:9092,B://[::1]:9092\ninter.broker.listener.name=A\n"
        "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT"
    )
    assert [endpoint.port for endpoint in config.listeners.opened] == [9092, 9092]


def test_dynamic_layers_say_what_changed() -> None:
    config = BrokerConfig.from_sources("node.id=1\nlog.retention.ms=5")
    default = {"log.retention.ms": "6", "min.insync.replicas": "2"}
    changed, names = config.with_dynamic({"log.retention.ms": "7"}, default)
    assert names == {"log.retention.ms", "min.insync.replicas"}
    assert (changed["log.retention.ms"], changed["min.insync.replicas"]) == (7, 2)
    assert changed.topic_defaults["retention.ms"] == 7
    again, names = changed.with_dynamic({}, default)
    assert names == {"log.retention.ms"}
    assert again["log.retention.ms"] == 6
    assert again.with_dynamic({}, {})[1] == {"log.retention.ms", "min.insync.replicas"}


def test_a_bad_dynamic_entry_is_left_out_with_a_warning() -> None:
    config = BrokerConfig.from_sources("node.id=1")
    changed, names = config.with_dynamic(
        {"log.segment.bytes": "1", "no.such": "1", "node.id": "2", "min.insync.replicas": "2"}, {}
    )
    assert names == {"min.insync.replicas"}
    assert changed.warnings == (
        "log.segment.bytes is left out: it must be at least 1048576",
        "no.such is left out: it is not a setting that can change while a broker runs",
        "node.id is left out: it is not a setting that can change while a broker runs",
    )


JAAS = "listener.name.plaintext.plain.sasl.jaas.config"


def test_an_entry_that_contradicts_the_static_settings_stays_unchanged_and_the_others_count() -> None:
    config = BrokerConfig.from_sources(f"node.id=1\ngroup.max.session.timeout.ms=60000\n{JAAS}=old")
    broker = {"max.connections.per.ip": "0", JAAS: "new", "max.connections": "9"}
    changed, names = config.with_dynamic(broker, {"log.retention.ms": "6"})
    assert names == {JAAS, "max.connections", "log.retention.ms"}
    assert changed.get_secret(JAAS) == "new"
    assert changed.warnings == (
        "max.connections.per.ip is left out: max.connections.per.ip=0: is allowed only with"
        " max.connections.per.ip.overrides",
    )
    assert "max.connections.per.ip" not in changed.dynamic_broker


LEAST, MOST = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"


def test_two_entries_that_contradict_each_other_keep_their_present_values_and_the_others_count() -> None:
    config, _ = BrokerConfig.from_sources("node.id=1").with_dynamic({}, {LEAST: "10", MOST: "20"})
    changed, names = config.with_dynamic(
        {LEAST: "200", JAAS: "new"}, {LEAST: "10", MOST: "100", "max.connections": "9"}
    )
    assert names == {JAAS, "max.connections"}
    assert (changed[LEAST], changed[MOST]) == (10, 20), "neither the present values are lost, nor is one half changed"
    assert changed.warnings == (
        f"{LEAST} and {MOST} stay unchanged: {LEAST}=200: must not exceed {MOST}, which is 100",
    )
    again, names = changed.with_dynamic({LEAST: "50"}, {LEAST: "10", MOST: "100"})
    assert (again[LEAST], again[MOST], again.warnings) == (50, 100, ()), "and they change as soon as they fit"


def test_at_the_start_contradictory_entries_leave_the_static_values() -> None:
    config = BrokerConfig.from_sources(f"node.id=1\n{LEAST}=1\n{MOST}=2")
    changed, names = config.with_dynamic({LEAST: "200"}, {MOST: "100", "max.connections": "9"})
    assert names == {"max.connections"}
    assert (changed[LEAST], changed[MOST]) == (1, 2)
    assert changed.warnings == (f"{LEAST} and {MOST} are left out: {LEAST}=200: must not exceed {MOST}, which is 100",)


def test_a_problem_that_names_too_few_settings_stops_no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a check may, in which a setting was forgotten."""
    static = BrokerConfig.from_sources("node.id=1")
    present, _ = static.with_dynamic({MOST: "20"}, {"max.connections": "8"})

    def forgetful(values: Mapping[str, Any]) -> list[str]:
        if values[LEAST] > values[MOST]:
            return [Contradiction("the lags are wrong", "log.cleaner.threads")]
        return ["the number is wrong"] if values["max.connections"] == 666 else []

    monkeypatch.setattr("ottla.settings.config.inconsistencies", forgetful)
    changed, names = present.with_dynamic({LEAST: "200", MOST: "20", JAAS: "new"}, {"max.connections": "9"})
    assert names == {JAAS}
    assert changed.warnings == (f"max.connections stays unchanged, and {LEAST} is left out: the lags are wrong",)
    assert (changed[LEAST], changed[MOST], changed["max.connections"]) == (0, 20, 8)
    changed, names = static.with_dynamic({}, {"max.connections": "666"})
    assert not names
    assert changed.warnings == ("max.connections is left out: the number is wrong",)


def test_entries_that_are_right_only_together_stay_together() -> None:
    config = BrokerConfig.from_sources("node.id=1")
    pair = {"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "127.0.0.1:5"}
    wrong = {"log.cleaner.threads": "1000"}
    changed, names = config.with_dynamic({**pair, **wrong}, {})
    assert names == set(pair)
    assert len(changed.warnings) == 1
    assert changed.warnings[0].startswith("log.cleaner.threads is left out: log.cleaner.dedupe.buffer.size=")


@pytest.mark.parametrize(
    "values",
    [
        {"listeners": "A://:1,A://:2"},
        {"listeners": "no"},
        {"listener.security.protocol.map": "A:B"},
        {"max.connections.per.ip.overrides": "nobody"},
        {"log.retention.ms": "0", "log.roll.ms": "0", "broker.id": "7", "super.users": "me"},
        {"group.coordinator.rebalance.protocols": "consumer", "authorizer.class.name": "mine"},
        {"ottla.metadata.etcd.user": "me", "ottla.metadata.etcd.tls.ca.file": "ca.pem"},
        {"inter.broker.listener.name": "A", "security.inter.broker.protocol": "SSL"},
        {"max.connections": "many"},
    ],
    ids=lambda values: " ".join(values),
)
def test_each_contradiction_names_a_setting_that_was_given(values: dict[str, str]) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        BrokerConfig({"node.id": "1", **values})
    for problem in caught.value.problems:
        assert isinstance(problem, Contradiction)
        assert values.keys() & set(problem.settings), problem


def test_a_listeners_own_limit() -> None:
    config = BrokerConfig.from_sources("node.id=1\nlistener.name.plaintext.max.connections=7")
    assert config.for_listener("PLAINTEXT", "max.connections") == 7
    assert config.listener_connections == {"PLAINTEXT": 7}
    assert config.for_listener("OTHER", "max.connections") == 2147483647


def test_it_is_known_by_which_file_a_broker_was_started_also_after_a_change() -> None:
    text = "node.id=1\nlog.dirs=/a\n"
    config = BrokerConfig.from_sources(text, {}, {"OTTLA_NUM_PARTITIONS": "3"})
    assert config.file_checksum == hashlib.sha256(text.encode()).hexdigest()[:16]
    assert config.with_dynamic({"log.retention.ms": "5"}, {})[0].file_checksum == config.file_checksum
    assert BrokerConfig.from_sources("", {"node.id": "1"}).file_checksum == ""
