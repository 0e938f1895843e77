"""The frameworks that applications are built on: spring-kafka, Kafka Connect in distributed mode, Kafka Streams.

Each framework runs without transactions and with transactions. With transactions, Connect and Streams are also killed.
"""

import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import kafka
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from tests.conformance.conftest import Target
from tests.crash.faults import MINUTES
from tests.peers.apache_kafka import compile_program, java
from tests.peers.connect_worker import connect_worker, wait_for

STREAMS_KILLS, CONNECT_KILLS = 12, 6


def create(target: Target, name: str, partitions: int) -> None:
    wanted = {"num_partitions": partitions, "replication_factor": target.replication_factor}
    admin = KafkaAdminClient(bootstrap_servers=target.bootstrap)
    admin.create_topics({name: wanted}, wait_for_metadata=True)
    admin.close()


def spring(program: str, target: Target, topic: str) -> str:
    """Runs a program that is based on spring-kafka. Returns the line that it prints, and its log if it failed."""
    arguments = [target.bootstrap, topic, str(target.replication_factor)]
    command = java(compile_program("spring", "spring"), program, *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout.strip() if done.stdout.startswith("ok") else done.stdout + done.stderr[-4000:]


def test_spring_template_and_listeners(target: Target, unique: Callable[[str], str]) -> None:
    assert spring("SpringProgram", target, unique("spring")) == "ok 300"


def test_spring_transactions(target: Target, unique: Callable[[str], str]) -> None:
    """Of 30 transactions with 10 records each, 20 are committed. Twenty answers are aborted, and made again."""
    said = spring("SpringTransactions", target, unique("spring"))
    assert said == "ok 200 answers, 0 more than once, 0 to aborted records, 20 failures"


def test_streams_word_count(target: Target, unique: Callable[[str], str], tmp_path: Path) -> None:
    lines = [f"all streams lead to kafka number {i % 10}" for i in range(500)]
    source, sink = unique("lines"), unique("counts")
    create(target, source, 3)
    create(target, sink, 2)
    producer = KafkaProducer(bootstrap_servers=target.bootstrap)
    for i, line in enumerate(lines):
        producer.send(source, line.encode(), str(i).encode())
    producer.flush(30)
    command = word_count(target, source, sink, tmp_path, "at_least_once")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as streams:
        assert streams.stdin is not None
        try:
            expected = Counter(word for line in lines for word in line.split())
            counts = word_counts(target.bootstrap, sink, expected)
        finally:
            out, errors = streams.communicate(timeout=60)
    assert counts == expected, errors[-4000:]
    assert out.split("\n")[:2] == ["running", "closed"], errors[-4000:]


@pytest.mark.timeout(900)
@MINUTES
def test_streams_count_exactly_once_while_killed(target: Target, unique: Callable[[str], str], tmp_path: Path) -> None:
    """The application is killed in the middle of its transactions and started again. The committed counts of each word
    are 1, 2, 3, …, without a gap and without a repetition."""
    source, sink = unique("lines"), unique("counts")
    create(target, source, 3)
    create(target, sink, 2)
    command = word_count(target, source, sink, tmp_path, "exactly_once_v2")
    chance = random.Random(7)
    producer = KafkaProducer(bootstrap_servers=target.bootstrap)
    consumer = KafkaConsumer(
        sink,
        bootstrap_servers=target.bootstrap,
        auto_offset_reset="earliest",
        group_id=None,
        isolation_level="read_committed",
    )
    counts: dict[str, list[int]] = {}
    expected: Counter[str] = Counter()

    def read_until(number: int) -> bool:
        for records in consumer.poll(200).values():
            for record in records:
                counts.setdefault(record.key.decode(), []).append(int(record.value))
        return sum(map(len, counts.values())) >= number

    log = tmp_path / "streams.log"
    for kill in range(STREAMS_KILLS + 1):
        before = expected.total()
        for i in range(200):
            line = f"all streams lead to kafka number {i % 10}"
            expected.update(line.split())
            producer.send(source, line.encode(), str(i).encode())
        producer.flush(30)
        wanted = expected.total() if kill == STREAMS_KILLS else before + chance.randrange(1, 600)
        with (
            open(log, "ab") as output,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output) as streams,
        ):
            try:
                wait_for(lambda wanted=wanted: read_until(wanted), f"{wanted} counts ({log.read_text()[-2000:]})", 120)
                time.sleep(chance.random() / 5)
            finally:
                streams.kill()
    read_until(0)
    consumer.close()
    assert counts == {word: list(range(1, count + 1)) for word, count in expected.items()}


def word_count(target: Target, source: str, sink: str, folder: Path, guarantee: str) -> list[str]:
    """The command that runs the word count, with its state in a folder."""
    arguments = [target.bootstrap, source, sink, str(folder / "state"), guarantee]
    return java(compile_program("streams", "kafka"), "WordCount", *arguments)


def word_counts(bootstrap: str, topic: str, expected: Counter[str]) -> dict[str, int]:
    """Reads the latest counts of the words until they are as expected, for at most a minute, and returns them."""
    consumer = KafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id=None)
    counts: dict[str, int] = {}
    deadline = time.monotonic() + 60
    while counts != expected and time.monotonic() < deadline:
        for records in consumer.poll(500).values():
            counts.update({record.key.decode(): int(record.value) for record in records})
    consumer.close()
    return counts


@pytest.mark.timeout(300)
def test_connect_distributed_file_source_and_sink(target: Target, unique: Callable[[str], str], tmp_path: Path) -> None:
    name, topic = unique("connect"), unique("lines")
    create(target, topic, 1)
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    first, second = [f"line {i}" for i in range(100)], [f"line {i}" for i in range(100, 200)]
    source.write_text("".join(f"{line}\n" for line in first))
    with connect_worker(target.bootstrap, target.replication_factor, name, tmp_path) as connect:
        for kind, config in {
            "source": {"connector.class": "FileStreamSource", "file": str(source), "topic": topic},
            "sink": {
                "connector.class": "FileStreamSink",
                "file": str(sink),
                "topics": topic,
                "consumer.override.auto.offset.reset": "earliest",
            },
        }.items():
            body = {"name": f"{name}-{kind}", "config": config | {"tasks.max": "1"}}
            wait_for(lambda body=body: connect.ask("POST", "/connectors", body), f"{kind} connector")
            wait_for(lambda kind=kind: connect.running(f"{name}-{kind}"), f"running {kind}")
        wait_for(
            lambda: sink.exists() and sink.read_text().split("\n")[:-1] == first, "first hundred lines in the sink"
        )
        time.sleep(1.5)  # longer than offset.flush.interval.ms
    with open(source, "a") as file:
        file.writelines(f"{line}\n" for line in second)
    # A new worker of the same group knows the connectors, and the offsets that they had reached.
    with connect_worker(target.bootstrap, target.replication_factor, name, tmp_path) as connect:
        wait_for(lambda: sink.read_text().split("\n")[:-1] == first + second, "second hundred lines in the sink")
        for kind in ("source", "sink"):
            assert connect.ask("DELETE", f"/connectors/{name}-{kind}") is not None
    consumer = kafka.KafkaConsumer(bootstrap_servers=target.bootstrap, group_id=None)
    assert consumer.end_offsets([kafka.TopicPartition(topic, 0)]) == {kafka.TopicPartition(topic, 0): 200}
    consumer.close()


@contextmanager
def growing(file: Path) -> Iterator[list[str]]:
    """A file to which a thread appends lines, a few at a time, until the context ends. Yields the lines."""
    lines: list[str] = []
    over = threading.Event()

    def grow() -> None:
        with open(file, "a", buffering=1) as out:
            while not over.wait(0.05):
                lines.append(f"line {len(lines)}")
                out.write(f"{lines[-1]}\n")

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        yield lines
    finally:
        over.set()
        thread.join()


@pytest.mark.timeout(1800)
@MINUTES
def test_connect_writes_a_file_exactly_once_while_killed(
    target: Target, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Workers with exactly.once.source.support=enabled are killed while they write a file's lines in transactions, one
    for each poll of the source. The file grows all the time: a source with a small `batch.size` keeps lines in its
    buffer until the file has more."""
    name, topic = unique("exactly-once"), unique("lines")
    create(target, topic, 1)
    source = tmp_path / "source.txt"
    source.touch()
    config = {
        "connector.class": "FileStreamSource",
        "file": str(source),
        "topic": topic,
        "tasks.max": "1",
        "exactly.once.support": "required",
        "transaction.boundary": "poll",
    }
    body = {"name": name, "config": config}
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=target.bootstrap,
        auto_offset_reset="earliest",
        group_id=None,
        isolation_level="read_committed",
    )
    read: list[str] = []

    def read_until(number: int) -> bool:
        for records in consumer.poll(200).values():
            read.extend(record.value.decode() for record in records)
        return len(read) >= number

    def await_lines(number: int) -> None:
        log = (tmp_path / "connect.log").read_text()[-2000:]
        wait_for(lambda: read_until(number), f"{number} lines ({log})", 240)

    addressed = (target.bootstrap, target.replication_factor, name, tmp_path)
    with growing(source) as lines:
        for kill in range(CONNECT_KILLS):
            with connect_worker(*addressed, exactly_once_source_support="enabled") as connect:
                if kill == 0:
                    wait_for(lambda: connect.ask("POST", "/connectors", body), "connector")
                await_lines(len(lines) + 20 + kill)
                connect.kill()
    with connect_worker(*addressed, exactly_once_source_support="enabled"):
        await_lines(len(lines))
        time.sleep(1)  # in which a second copy of a line would come
        read_until(0)
    assert read == lines
    ends = consumer.end_offsets([kafka.TopicPartition(topic, 0)])
    consumer.close()
    assert ends[kafka.TopicPartition(topic, 0)] > len(lines)  # the transactions' markers have offsets, too
