"""`kubectl ottla` on two brokers whose advertised names can't be resolved, through a stand-in for kubectl."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from ottla.cli.entry import kubectl_plugin
from tests.cli.conftest import TIMEOUT_S, Result
from tests.peers.kubectl_stand_in import KubectlStandIn, cluster
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.wire import free_port

PLUGIN = [sys.executable, "-m", "ottla.cli.kubectl_plugin"]
PORT = 9092
BOOTSTRAP = f"flights-bootstrap.demo.svc:{PORT}"


class Demo:
    """Runs `kubectl ottla` on two brokers that stand for the Cluster `flights`. A stand-in takes the place of the
    kubectl that the plug-in calls."""

    def __init__(self, brokers: list[OttlaBroker], kubectl: KubectlStandIn, environment: dict[str, str]) -> None:
        self.brokers = brokers
        self.kubectl = kubectl
        self.environment = environment | {"PATH": f"{kubectl.folder}{os.pathsep}{os.environ['PATH']}"}

    @property
    def targets(self) -> dict[str, str]:
        """The broker's address behind each pod and Service to which the stand-in forwards while both brokers run."""
        pods = {f"pod/flights-broker-{number}": broker.bootstrap for number, broker in enumerate(self.brokers)}
        return {"service/flights-bootstrap": self.brokers[0].bootstrap, **pods}

    def start(self, *arguments: str, own_session: bool = False, **variables: str) -> subprocess.Popen[str]:
        """Starts `kubectl ottla …`, and doesn't wait for its end."""
        return subprocess.Popen(
            [*PLUGIN, *arguments],
            env=self.environment | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=own_session,
        )

    def __call__(self, *arguments: str, given: str = "", **variables: str) -> Result:
        """Runs `kubectl ottla …` to its end."""
        process = self.start(*arguments, **variables)
        out, err = process.communicate(given, TIMEOUT_S)
        return Result(process.returncode, out.encode(), err.encode())


@contextmanager
def two_brokers(folder: Path) -> Iterator[list[OttlaBroker]]:
    """Two brokers that advertise names which can't be resolved."""
    brokers: list[OttlaBroker] = []
    try:
        for number in range(2):
            clients, between = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
            name = f"flights-broker-{number}.flights-brokers.demo.svc:{PORT}"
            settings = {
                "node_id": str(number),
                "listeners": f"CLIENTS://{clients},BROKERS://{between}",
                "advertised_listeners": f"CLIENTS://{name},BROKERS://{between}",
                "listener_security_protocol_map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
                "inter_broker_listener_name": "BROKERS",
                "ottla_metadata_store": f"embedded:{folder / 'metadata'}",
                "offsets_topic_num_partitions": "2",
            }
            brokers.append(OttlaBroker(folder / str(number), clients, **settings))
        yield brokers
    finally:
        for broker in brokers:
            broker.kill()


@contextmanager
def demo_of(brokers: list[OttlaBroker], folder: Path, environment: dict[str, str]) -> Iterator[Demo]:
    """A `Demo` whose stand-in for kubectl can forward to both brokers. Asserts at its end that no process of the
    stand-in still runs."""
    found = Demo(brokers, KubectlStandIn(folder / "bin"), environment)
    found.kubectl.tell([cluster("flights", BOOTSTRAP)], found.targets)
    yield found
    assert found.kubectl.living() == []


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[OttlaBroker]]:
    """The brokers that all tests share, except the test that restarts brokers."""
    with two_brokers(tmp_path_factory.mktemp("two")) as found:
        yield found


@pytest.fixture
def demo(two: list[OttlaBroker], tmp_path: Path, environment: dict[str, str]) -> Iterator[Demo]:
    """A `Demo` with the brokers that the tests of this module share."""
    with demo_of(two, tmp_path, environment) as found:
        yield found


@pytest.fixture
def topic() -> str:
    """A topic's name that no other test has used."""
    return f"tour-{uuid.uuid4().hex[:8]}"


def test_topics_records_and_groups_by_names_that_only_kubernetes_knows(demo: Demo, topic: str) -> None:
    """Each broker leads one partition, so each client has to reach both brokers."""
    made = demo("topics", "create", topic, "--partitions", "2", "--json")
    assert made.code == 0, made.stderr
    (described,) = demo("topics", "describe", topic, "--json").json
    assert {partition["leader"] for partition in described["partitions"]} == {0, 1}
    for partition in (0, 1):
        sent = demo("produce", topic, "--partition", str(partition), given="".join(f"{n}\n" for n in range(100)))
        assert sent.code == 0, sent.stderr
    group = ("--group", f"{topic}-readers", "--from-beginning", "--max-messages", "200")
    read = demo("consume", topic, *group, "--json")
    assert read.code == 0, read.stderr
    assert sorted(int(record["value"]) for record in read.json_lines) == sorted([*range(100)] * 2)
    described = demo("groups", "describe", f"{topic}-readers", "--json")
    assert described.code == 0, described.stderr
    assert described.json[0]["lag"] == 0
    listed = demo("brokers", "list", "--json").json
    assert {row["host"] for row in listed} == {f"flights-broker-{n}.flights-brokers.demo.svc" for n in (0, 1)}


def test_commands_with_a_connection_of_their_own_take_the_same_way(demo: Demo) -> None:
    """`brokers drain` and `undrain` speak Kafka's protocol over connections of their own, which also go through
    kubectl's port-forward."""
    for command in ("drain", "undrain"):
        done = demo("brokers", command, "1")
        assert done.code == 0, done.stderr


def test_options_of_kubectl_stand_in_front_and_those_of_ottla_behind(demo: Demo) -> None:
    options = ("--context=prod", "-n", "demo", "--kubeconfig", "/k", "--cluster", "flights")
    assert demo(*options, "topics", "list", "--json").code == 0
    get, *forwards = demo.kubectl.calls()
    assert get[:4] == ["--kubeconfig=/k", "--context=prod", "--namespace=demo", "get"]
    assert forwards
    assert all(call[:2] == ["--kubeconfig=/k", "--context=prod"] for call in forwards)
    assert all(call[call.index("port-forward") - 2 :][:2] == ["--namespace", "demo"] for call in forwards)


def test_help_and_mistakes_ask_nothing_of_kubectl(demo: Demo) -> None:
    for words in (["--help"], ["topics", "--help"], ["topics", "list", "--help"], ["--version"], ["version"]):
        assert demo(*words).code == 0, words
    wrong = demo("topics", "lst")
    assert wrong.code == 2
    assert "kubectl ottla topics --help" in wrong.stderr
    assert demo().code == 2
    assert demo.kubectl.calls() == []


def test_the_only_cluster_is_meant_and_among_several_one_is_named(demo: Demo) -> None:
    demo.kubectl.tell([cluster("flights", BOOTSTRAP), cluster("trains", "trains-bootstrap.demo.svc:9092")])
    several = demo("topics", "list")
    assert (several.code, several.stderr.count("\n")) == (2, 1)
    assert "flights, trains" in several.stderr
    assert demo("--cluster", "flights", "topics", "list").code == 0
    missing = demo("--cluster", "flight", "topics", "list")
    assert missing.code == 4
    assert "flights, trains" in missing.stderr
    demo.kubectl.tell([])
    assert demo("topics", "list").code == 4


def test_each_failure_is_one_sentence(demo: Demo) -> None:
    demo.kubectl.tell([cluster("flights", None, "waiting for etcd")])
    early = demo("topics", "list")
    assert (early.code, early.stderr.count("\n")) == (3, 1)
    assert "no address" in early.stderr
    assert "waiting for etcd" in early.stderr

    demo.kubectl.tell([cluster("flights", BOOTSTRAP)], {})
    gone = demo("topics", "list")
    assert (gone.code, gone.stderr.count("\n")) == (3, 1)
    assert 'kubectl: pods "flights-bootstrap" not found' in gone.stderr

    demo.kubectl.tell(refusal="Error from server (Forbidden): clusters.ottla.dev is forbidden")
    forbidden = demo("topics", "list")
    assert (forbidden.code, forbidden.stderr.count("\n")) == (3, 1)
    assert forbidden.stderr.startswith("error: kubectl: clusters.ottla.dev is forbidden.")

    absent = demo("topics", "list", PATH="/nonexistent")
    assert (absent.code, absent.stderr.count("\n")) == (1, 1)
    assert "no command 'kubectl'" in absent.stderr


def test_another_address_is_refused_and_variables_do_not_name_one(demo: Demo) -> None:
    assert demo("topics", "list", OTTLA_BOOTSTRAP="127.0.0.1:1", OTTLA_CONTEXT="none").code == 0
    both = demo("topics", "list", "--bootstrap", "127.0.0.1:1")
    assert both.code == 2
    assert "--bootstrap" in both.stderr


def led_by_one(demo: Demo, topic: str) -> int:
    """Creates a topic with a single partition, and returns its leader."""
    made = demo("topics", "create", topic, "--partitions", "1", "--replication-factor", "1")
    assert made.code == 0, made.stderr
    (described,) = demo("topics", "describe", topic, "--json").json
    return int(described["partitions"][0]["leader"])


def line_of(process: subprocess.Popen[str]) -> str:
    """The next line that the process prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_pod_that_is_restarted_in_between_is_found_again(
    tmp_path: Path, topic: str, environment: dict[str, str]
) -> None:
    """A broker that a consumer reads from stops, and so does the `kubectl port-forward` to the broker's pod. The pod is
    missing for a while, and comes back. The consumer continues by itself."""
    with two_brokers(tmp_path) as brokers, demo_of(brokers, tmp_path, environment) as demo:
        _restarted(demo, topic)


def _restarted(demo: Demo, topic: str) -> None:
    leader = led_by_one(demo, topic)
    consumer = demo.start("consume", topic, "--from-beginning")
    assert demo("produce", topic, given="before\n").code == 0
    assert line_of(consumer) == "before"
    starts = len(demo.kubectl.calls())

    broker = demo.brokers[leader]
    broker.stop()
    others = {name: to for name, to in demo.targets.items() if to != broker.bootstrap}
    demo.kubectl.tell(targets={**others, "service/flights-bootstrap": demo.brokers[1 - leader].bootstrap})
    deadline = time.monotonic() + TIMEOUT_S
    while not any(f"pod/flights-broker-{leader}" in call for call in demo.kubectl.calls()[starts:]):
        assert consumer.poll() is None
        assert time.monotonic() < deadline, "the plug-in doesn't ask for the missing pod again"
        time.sleep(0.05)
    broker.start_again()
    demo.kubectl.tell(targets=demo.targets)

    sent = demo("produce", topic, given="after\n")
    assert sent.code == 0, sent.stderr
    assert line_of(consumer) == "after"
    consumer.send_signal(signal.SIGINT)
    consumer.communicate(timeout=TIMEOUT_S)


def test_ctrl_c_leaves_the_group_before_the_forwards_end(demo: Demo, topic: str) -> None:
    """A terminal sends Ctrl-C to all processes of the command line. But the consumer can leave the group only while its
    kubectl still runs."""
    led_by_one(demo, topic)
    assert demo("produce", topic, given="one\n").code == 0
    consumer = demo.start("consume", topic, "--group", f"{topic}-readers", "--from-beginning", own_session=True)
    assert line_of(consumer) == "one"
    os.killpg(consumer.pid, signal.SIGINT)
    consumer.communicate(timeout=TIMEOUT_S)
    assert consumer.returncode == 130
    assert demo.kubectl.living() == []
    (group,) = demo("groups", "describe", f"{topic}-readers", "--json").json
    assert (group["state"], group["members"]) == ("Empty", [])
    assert group["lag"] == 0


@pytest.mark.parametrize("ends", [signal.SIGTERM, signal.SIGKILL])
def test_no_kubectl_outlives_the_plug_in(demo: Demo, topic: str, ends: signal.Signals) -> None:
    led_by_one(demo, topic)
    assert demo("produce", topic, given="one\n").code == 0
    consumer = demo.start("consume", topic, "--from-beginning")
    assert line_of(consumer) == "one"
    assert demo.kubectl.living()
    consumer.send_signal(ends)
    consumer.communicate(timeout=TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    while left := demo.kubectl.living():
        assert time.monotonic() < deadline, f"kubectl still runs: {left}"
        time.sleep(0.05)


def test_kubectl_finds_the_plug_in_by_its_name() -> None:
    program = Path(sys.executable).parent / "kubectl-ottla"
    (point,) = entry_points(group="console_scripts", name="kubectl-ottla")
    assert point.load() is kubectl_plugin
    if program.exists():  # an editable installation from before this entry point doesn't have the program
        done = subprocess.run([program, "version"], capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.startswith("ottla ")
