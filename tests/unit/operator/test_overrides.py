"""Settings of single brokers: which are refused, how each reaches its broker, and the status."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from ottla.operator.brokers import PageAt
from ottla.operator.objects import condition
from ottla.operator.plan import broker_pods
from ottla.operator.plan.overrides import Change, changes
from ottla.operator.plan.roll import Report
from ottla.operator.spec.broker_config import Settings, is_reserved, parse_config, parse_overrides
from ottla.operator.spec.cluster import Defaults, parse_cluster
from ottla.operator.spec.spec_error import SpecError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.settings.catalogue import BROKER
from ottla.settings.properties import parse_properties, properties_checksum
from tests.unit.operator.test_cluster import OUTSIDE, Pages, Scene, running
from tests.unit.operator.test_scale import _cluster

STATIC, DYNAMIC = "socket.listen.backlog.size", "log.retention.ms"


def override(broker: int, **config: Any) -> dict[str, Any]:
    return {"broker": broker, "config": {name.replace("_", "."): value for name, value in config.items()}}


CLUSTER = parse_cluster(
    {
        "metadata": {"namespace": "shop", "name": "k", "uid": "u", "generation": 1},
        "spec": {
            "brokers": {"replicas": 3, "storage": {"size": "1Gi"}},
            "configOverrides": [override(1, socket_listen_backlog_size="77")],
        },
    },
    Defaults("i", "e"),
)


class ReadingPages(Pages):
    """Brokers whose reports have the checksum of the file that the broker was started with. This is the file in the
    ConfigMap at the time when the broker's pod was first asked."""

    def __init__(self, scene: Scene) -> None:
        super().__init__()
        self._world = scene.world
        self._read: dict[str, str] = {}

    async def reports(self, pages: Mapping[int, PageAt]) -> dict[int, Report]:
        return {broker: Report(file_checksum=self.started_with(broker)) for broker in pages}

    def started_with(self, broker: int) -> str:
        uid = self._world.objects["Pod", "shop", f"k-broker-{broker}"]["metadata"]["uid"]
        files = self._world.objects["ConfigMap", "shop", "k-config"]["data"]
        text = files["server.properties"] + files.get(f"broker-{broker}.properties", "")
        return self._read.setdefault(uid, properties_checksum(text))


def reading(**spec: Any) -> Scene:
    scene = Scene(**spec)
    scene.pages = ReadingPages(scene)
    scene.restart()
    scene.rounds(6)
    assert scene.condition("Ready") == ("True", "BrokersServe"), scene.status
    return scene


def overridden(scene: Scene, *overrides: dict[str, Any]) -> None:
    scene.world.edit("Cluster", "k", lambda spec: spec.update(configOverrides=list(overrides)))


def restarted(scene: Scene) -> list[str]:
    return [message for reason, message in scene.world.events if reason == "RollingRestart"]


# ---- refused settings


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([override(1, num_partitions=3)], "broker 1: brokers can't differ in num.partitions; set it in config"),
        ([override(1, min_insync_replicas=1)], "brokers can't differ in min.insync.replicas"),
        ([override(1, node_id=4)], "broker 1: the operator sets node.id itself"),
        ([override(1, log_retention_mss=4)], "there is no setting log.retention.mss, maybe log.retention.ms is meant"),
        ([override(1, log_retention_ms="ever")], "broker 1: log.retention.ms=ever"),
        ([override(1, log_retention_ms="1"), override(1, log_roll_ms="1")], "broker 1 is named twice"),
        ([override(0, log_roll_ms="1\nnode.id=7")], "broker 0: the value of log.roll.ms holds a line break"),
    ],
)
def test_refused_in_one_sentence(given: list[dict[str, Any]], says: str) -> None:
    with pytest.raises(SpecError, match=says) as refused:
        parse_overrides(given, Settings({}, {}))
    assert "\n" not in str(refused.value)


def test_what_contradicts_the_settings_of_all_is_refused() -> None:
    of_all = parse_config({"group.max.session.timeout.ms": "8000"})
    with pytest.raises(SpecError, match=r"broker 2: group\.min\.session\.timeout\.ms=9000: must not exceed"):
        parse_overrides([override(2, group_min_session_timeout_ms="9000")], of_all)


def test_a_spec_that_is_refused_leaves_the_brokers_as_they_were() -> None:
    scene = running(configOverrides=[override(1, log_retention_ms="7")])
    overridden(scene, override(1, num_partitions="7"))
    scene.rounds(2)
    assert scene.condition("Ready") == ("False", "InvalidSpec")
    assert "brokers can't differ in num.partitions" in scene.status["message"]
    assert scene.kafka.own[1] == {DYNAMIC: "7"}


def test_no_setting_that_is_told_to_running_brokers_is_a_password() -> None:
    """A broker doesn't return a password, so the operator would set it again and again."""
    config = {name: "1" for name, one in BROKER.items() if one.sensitive and not is_reserved(name)}
    assert config
    assert not parse_overrides([{"broker": 0, "config": config}], Settings({}, {}))[0].dynamic


# ---- dynamic settings


def test_what_can_change_while_a_broker_runs_is_told_to_it_alone_and_restarts_nobody() -> None:
    scene = running(config={DYNAMIC: "1000"})
    pods = {name: scene.world.objects["Pod", "shop", name]["metadata"]["uid"] for name in scene.pods()}
    overridden(scene, override(1, log_retention_ms="2000"))
    scene.rounds(4)
    assert scene.kafka.dynamic == {DYNAMIC: "1000"}
    assert {broker: own for broker, own in scene.kafka.own.items() if own} == {1: {DYNAMIC: "2000"}}
    assert pods == {name: scene.world.objects["Pod", "shop", name]["metadata"]["uid"] for name in scene.pods()}
    assert ("SettingsChanged", "broker 1: log.retention.ms=2000") in scene.world.events
    assert scene.status["configOverrides"] == [{"broker": 1, "applied": True, "settings": [DYNAMIC]}]
    assert scene.condition("OverridesApplied") == ("True", "Applied")
    overridden(scene)
    scene.rounds(2)
    assert not any(scene.kafka.own.values())
    assert "configOverrides" not in scene.status
    assert not condition(scene.status, "OverridesApplied")


def test_what_somebody_else_gave_to_a_broker_is_taken_back() -> None:
    """The same holds for settings of all brokers. Settings stay if another part of the operator decides about them, or
    if Kafka's tools set them during copies.
    """
    scene = running(configOverrides=[override(0, log_retention_ms="5")])
    kept = {
        "leader.replication.throttled.rate": "1000",
        "replica.alter.log.dirs.io.max.bytes.per.second": "1000",
        "ottla.listener.addresses": "NODE://192.0.2.1:31000",
    }
    scene.kafka.own[0][DYNAMIC] = "6"
    scene.kafka.own[2] |= {**kept, "log.roll.ms": "9"}
    scene.rounds(1)
    assert scene.kafka.own[0] == {DYNAMIC: "5"}
    assert scene.kafka.own[2] == kept
    assert ("SettingsChanged", "broker 2: log.roll.ms (reset)") in scene.world.events


def test_what_is_to_change() -> None:
    wanted = {0: Settings({}, {"a": "1", "b": "2"}), 9: Settings({}, {"a": "1"})}
    present = {0: {"a": "1", "c": "3"}, 1: {}, 2: {"node.id": "2", "d": "4"}}
    assert changes(wanted, present) == {0: Change({"b": "2"}, ["c"]), 2: Change({}, ["d"])}


def test_a_broker_that_refuses_its_settings_keeps_no_other_from_having_its_own() -> None:
    scene = running()
    configure = scene.kafka.configure_brokers

    async def refusing(given: Mapping[str, str], reset: Iterable[str] = (), *, broker: str = "") -> None:
        if broker == "0":
            raise KafkaError(ErrorCode.invalid_request, "no, thanks")
        await configure(given, tuple(reset), broker=broker)

    with patch.object(scene.kafka, "configure_brokers", refusing):
        overridden(scene, override(0, log_retention_ms="5"), override(1, log_retention_ms="6"))
        scene.rounds(2)
        assert scene.kafka.own[1] == {DYNAMIC: "6"}
        assert scene.condition("Ready") == ("False", "ConfigNotApplied")
        assert condition(scene.status, "ConfigApplied")["message"] == "broker 0 refuses its settings: no, thanks"
        assert [each["applied"] for each in scene.status["configOverrides"]] == [False, True]
    scene.rounds(1)
    assert scene.condition("OverridesApplied") == ("True", "Applied")
    assert scene.condition("Ready") == ("True", "BrokersServe")


def test_brokers_that_are_too_old_to_say_what_each_has_are_no_failure() -> None:
    async def older(brokers: Iterable[int]) -> None:
        return None

    scene = running()
    with patch.object(scene.kafka, "own_settings", older):
        scene.rounds(2)
        assert scene.condition("Ready") == ("True", "BrokersServe")
        overridden(scene, override(0, log_retention_ms="5"))
        scene.rounds(2)
        assert scene.condition("Ready") == ("True", "BrokersServe")
        assert scene.condition("OverridesApplied") == ("False", "Waiting")
        assert "older than the operator" in scene.status["message"]


# ---- static settings


def test_what_needs_a_restart_restarts_that_broker_alone() -> None:
    scene = reading()
    overridden(scene, override(1, socket_listen_backlog_size="77", log_retention_ms="8"))
    scene.reconcile()
    assert scene.status["configOverrides"] == [
        {
            "broker": 1,
            "applied": False,
            "settings": [STATIC, DYNAMIC],
            "message": f"{STATIC}: k-broker-1 has to be restarted first",
        }
    ]
    scene.rounds(6)
    assert restarted(scene) == ["k-broker-1 is restarted: its own settings change"]
    assert scene.status["configOverrides"] == [{"broker": 1, "applied": True, "settings": [STATIC, DYNAMIC]}]
    files = scene.world.objects["ConfigMap", "shop", "k-config"]["data"]
    assert files["broker-1.properties"] == f"{STATIC}=77\n"
    assert STATIC not in files["server.properties"]
    overridden(scene)
    scene.rounds(6)
    assert len(restarted(scene)) == 2
    assert "broker-1.properties" not in scene.world.objects["ConfigMap", "shop", "k-config"]["data"]
    scene.restart()
    scene.rounds(6)
    assert len(restarted(scene)) == 2, "the operator reads from the brokers what it has to restart"


def test_a_restart_that_was_begun_ends_after_the_operators_own() -> None:
    scene = reading()
    scene.pages.said = {}
    overridden(scene, override(0, socket_listen_backlog_size="77"), override(2, socket_listen_backlog_size="78"))
    scene.reconcile()
    scene.restart()
    scene.rounds(10)
    assert sorted(restarted(scene)) == [
        "k-broker-0 is restarted: its own settings change",
        "k-broker-2 is restarted: its own settings change",
    ]
    assert scene.condition("OverridesApplied") == ("True", "Applied")


def test_settings_of_all_and_of_one_that_change_together_restart_each_broker_once() -> None:
    scene = reading()
    overridden(scene, override(1, socket_listen_backlog_size="77"))
    scene.world.edit("Cluster", "k", lambda spec: spec.update(config={"num.partitions": "6"}))
    scene.rounds(12)
    assert len(restarted(scene)) == 3
    assert scene.condition("OverridesApplied") == ("True", "Applied")


def test_a_file_that_kubernetes_refuses_restarts_nobody() -> None:
    """Otherwise the broker would be restarted, come back with its old file, and be restarted again, without end."""
    scene = reading()
    scene.world.refusals["apply ConfigMap k-config"] = RuntimeError("a webhook says no")
    overridden(scene, override(1, socket_listen_backlog_size="77"))
    scene.rounds(6)
    assert restarted(scene) == []
    assert scene.condition("Ready") == ("False", "NotApplied")


def test_a_broker_that_does_not_say_how_it_was_started_is_not_restarted() -> None:
    scene = running(configOverrides=[override(1, socket_listen_backlog_size="77")])
    scene.rounds(4)
    assert restarted(scene) == []
    assert scene.condition("OverridesApplied") == ("False", "Waiting")
    assert scene.status["message"] == "configOverrides: broker 1 doesn't say with which settings it was started"


# ---- brokers that don't exist


def test_settings_of_a_broker_that_is_not_there_wait_for_it_and_say_so() -> None:
    scene = reading(configOverrides=[override(3, log_retention_ms="5", socket_listen_backlog_size="77")])
    assert scene.condition("Ready") == ("True", "BrokersServe")
    assert scene.condition("OverridesApplied") == ("False", "NoSuchBroker")
    assert scene.status["message"] == "configOverrides: there is no broker 3"
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=4))
    scene.kafka.cluster = _cluster(4, {})
    scene.rounds(6)
    assert scene.kafka.own[3] == {DYNAMIC: "5"}
    assert scene.condition("OverridesApplied") == ("True", "Applied")
    assert restarted(scene) == [], "the new broker started with its settings"


def test_a_broker_with_settings_of_its_own_can_go() -> None:
    scene = reading(configOverrides=[override(2, log_retention_ms="5")])
    scene.kafka.cluster = _cluster(3, {"orders": [(0, 1), (1, 0)]})
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=2))
    scene.rounds(8)
    assert scene.pods() == ["k-broker-0", "k-broker-1"]
    assert scene.condition("Ready") == ("True", "BrokersServe")
    assert condition(scene.status, "OverridesApplied")["message"] == "there is no broker 2"


def test_nothing_is_told_while_a_cluster_is_paused() -> None:
    scene = running()
    overridden(scene, override(0, log_retention_ms="5"))
    scene.world.edit("Cluster", "k", lambda spec: spec.update(paused=True))
    scene.rounds(2)
    assert not any(scene.kafka.own.values())
    assert condition(scene.status, "OverridesApplied")["status"] == "Unknown"


def test_addresses_outside_are_nobody_elses_to_take_back() -> None:
    scene = Scene(listeners=OUTSIDE)
    scene.rounds(6)
    scene.kafka.own[1]["ottla.listener.addresses"] = "NODE://192.0.2.1:31001"
    told = len(scene.world.events)
    scene.rounds(3)
    assert scene.kafka.own[1] == {"ottla.listener.addresses": "NODE://192.0.2.1:31001"}
    assert not [each for each in scene.world.events[told:] if each[0] == "SettingsChanged"]


# ---- the pod's command


def started(broker: int, files: Mapping[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the command of the broker's pod, with folders below `folder`; in place of `ottla` it prints the
    arguments."""
    for name, text in files.items():
        (folder / name).write_text(text)
    *shell, script = broker_pods.broker_set(CLUSTER, CLUSTER.pools[0], 3)["spec"]["template"]["spec"]["containers"][0][
        "command"
    ]
    script = script.replace("/tmp/", f"{folder}/tmp-").replace("/etc/ottla", str(folder))
    command = [*shell, script.replace("exec ottla", "echo")]
    return subprocess.run(command, env={"OTTLA_NODE_ID": str(broker)}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("broker", [0, 1])
def test_the_pod_starts_its_broker_with_the_file_of_all_and_then_its_own(broker: int, tmp_path: Path) -> None:
    files = broker_pods.config_map(CLUSTER)["data"]
    told = started(broker, files, tmp_path)
    read = tmp_path / "tmp-server.properties"
    assert told.stdout.split() == ["broker", "--config", str(read)]
    assert read.read_text() == files["server.properties"] + files.get(f"broker-{broker}.properties", "")
    assert parse_properties(read.read_text()).get(STATIC) == ("77" if broker == 1 else None)


def test_a_file_that_is_missing_starts_no_broker(tmp_path: Path) -> None:
    told = started(0, {}, tmp_path)
    assert told.returncode != 0
    assert told.stdout == ""
    assert "server.properties" in told.stderr
