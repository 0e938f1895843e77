"""Apache Kafka from Maven Central: its tools, which tests use on any broker, and its broker, with which tests compare
Ottla's.

`tests/conformance/java/kafka.pom.xml` names the jars. Maven fetches the jars once into the cache, and verifies their
checksums.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.peers.tools import ROOT, locked, need
from tests.peers.wire import free_port, wait_until_ready

JAVA = ROOT / "tests/conformance/java"
# Java's options for short-lived processes, and the options of Kafka's own start script for a broker.
QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Djava.awt.headless=true")
AS_SHIPPED = (
    "-server",
    "-Xms1G",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
_CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
_DIRECTORY_ID = "JEXY6aqzQY-32P5TStzaFA"  # another last digit for each node
TOOLS = {
    "topics": "org.apache.kafka.tools.TopicCommand",
    "configs": "kafka.admin.ConfigCommand",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "groups": "org.apache.kafka.tools.GroupsCommand",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "acls": "org.apache.kafka.tools.AclCommand",
    "delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "transactional-message-copier": "org.apache.kafka.tools.TransactionalMessageCopier",
    "storage": "kafka.tools.StorageTool",
    "connect-distributed": "org.apache.kafka.connect.cli.ConnectDistributed",
}


def jars(pom: str) -> str:
    """The class path of `tests/conformance/java/<pom>.pom.xml`. Jars that aren't in the cache yet are fetched."""
    need("java", "mvn")
    source = JAVA / f"{pom}.pom.xml"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    with locked(f"maven/{pom}-{digest}") as folder:
        if not (folder / ".done").exists():
            plugin = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
            goal = [plugin, f"-DoutputDirectory={folder}", "-DincludeScope=runtime"]
            command = ["mvn", "-q", "-B", "-C", "-f", str(source), *goal]
            done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
            assert done.returncode == 0, f"Maven can't fetch {source.name}:\n{done.stdout}\n{done.stderr}"
            (folder / ".done").touch()
    return f"{folder}/*"


def java(classpath: str, main: str, *arguments: str, heap: str = "256M", options: Sequence[str] = QUICK) -> list[str]:
    """The command that runs a class, by default with settings for short-lived processes."""
    logging = f"-Dlog4j2.configurationFile={JAVA / 'log4j2.yaml'}"
    return ["java", f"-Xmx{heap}", *options, logging, "-cp", classpath, main, *arguments]


def tool(name: str, *arguments: str, input: str | None = None, timeout: float = 90.0) -> str:
    """Runs one of Kafka's command-line tools. Returns its standard output. Raises AssertionError if it fails."""
    command = java(jars("kafka"), TOOLS[name], *arguments, heap="512M")
    done = subprocess.run(command, input=input, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, (
        f"kafka-{name} {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    return done.stdout


def compile_program(folder: str, pom: str) -> str:
    """Compiles `tests/conformance/java/{<folder>,shared}/*.java`. Returns the class path to run the program with."""
    need("javac")
    classpath = jars(pom)
    sources = sorted(path for each in (folder, "shared") for path in (JAVA / each).glob("*.java"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources) + classpath.encode()).hexdigest()[:12]
    with locked(f"java/{folder}-{digest}") as out:
        if not (out / ".done").exists():
            command = ["javac", "--release", "17", "-parameters", "-proc:none", "-cp", classpath, "-d", str(out)]
            subprocess.run([*command, *map(str, sources)], check=True, timeout=120)
            (out / ".done").touch()
    return f"{out}:{classpath}"


class ApacheKafka:
    """One combined broker and controller (KRaft) in `folder`, with Kafka's own defaults except for addresses."""

    def __init__(
        self,
        folder: Path,
        heap: str = "1G",
        options: Sequence[str] = QUICK,
        voters: Sequence[str] = (),
        listeners: Sequence[str] = (),
        **settings: str,
    ) -> None:
        """`voters` has the addresses of a cluster's controllers; `node_id` is the index of the node's own address.
        `listeners` are further ones, beside PLAINTEXT."""
        self.bootstrap = f"127.0.0.1:{free_port()}"
        self.data = folder / "data"
        controller = voters[int(settings["node_id"])] if voters else f"127.0.0.1:{free_port()}"
        self.number = int(settings.get("node_id", 0))
        self._folder = folder
        self._heap = heap
        self._options = options
        folder.mkdir(parents=True, exist_ok=True)
        values = {
            "process.roles": "broker,controller",
            "node.id": "0",
            "controller.quorum.bootstrap.servers": ",".join(voters or [controller]),
            "listeners": ",".join([f"PLAINTEXT://{self.bootstrap}", f"CONTROLLER://{controller}", *listeners]),
            "advertised.listeners": ",".join([f"PLAINTEXT://{self.bootstrap}", *listeners]),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.data),
            "offsets.topic.replication.factor": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
        } | {name.replace("_", "."): value for name, value in settings.items()}
        self._properties = folder / "server.properties"
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        self._classpath = jars("kafka")
        if voters:  # all nodes are given the same list of directory ids, one for each node
            ids = (f"{node}@{address}:{_DIRECTORY_ID[:-1]}{'AQgw'[node]}" for node, address in enumerate(voters))
            quorum = ["--initial-controllers", ",".join(ids)]
        else:
            quorum = ["--standalone"]
        tool("storage", "format", "-t", _CLUSTER_ID, "-c", str(self._properties), *quorum)
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = java(self._classpath, "kafka.Kafka", str(self._properties), heap=self._heap, options=self._options)
        began = time.monotonic()
        environment = os.environ | {"KAFKA_LOG_LEVEL": "INFO"}
        with open(self._folder / "server.log", "ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            wait_until_ready(self.bootstrap, 90)
        except TimeoutError:
            process.kill()
            raise AssertionError((self._folder / "server.log").read_text()[-4000:]) from None
        self.start_seconds = time.monotonic() - began
        return process

    def restart(self) -> None:
        """Stops the broker cleanly and starts it again."""
        self.stop()
        self.process = self._start()

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.process.kill()
        self.process.wait()

    def start_again(self) -> None:
        """Starts the broker after `kill`."""
        self.process = self._start()

    def pause(self) -> None:
        """Sends SIGSTOP: the broker's connections stay open, and it doesn't answer."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Sends SIGCONT, after `pause`."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self, timeout: float = 60.0) -> None:
        """Sends SIGTERM, and SIGKILL if the broker still runs after `timeout` seconds."""
        self.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + timeout
        while self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        self.process.kill()
        self.process.wait()


@contextmanager
def apache_kafka_cluster(
    folder: Path, size: int = 3, heap: str = "1G", options: Sequence[str] = QUICK, **settings: str
) -> Iterator[list[ApacheKafka]]:
    """Combined nodes that form one cluster; they are killed at the end."""
    voters = [f"127.0.0.1:{free_port()}" for _ in range(size)]
    nodes: list[ApacheKafka] = []
    try:
        with ThreadPoolExecutor(size) as pool:  # no node is ready before most of them run

            def node(number: int) -> None:
                own = {"node_id": str(number), **settings}
                nodes.append(ApacheKafka(folder / f"node-{number}", heap, options, voters, **own))

            list(pool.map(node, range(size)))
        nodes.sort(key=lambda node: node.number)
        yield nodes
    finally:
        for each in nodes:
            each.kill()
