"""Clients of transactions at work while faults hit a cluster, and what they have seen.

- Two writers and two copiers with librdkafka, and a reader of everything (`transactional_clients.py`): the older
  protocol of transactions, each client in a process of its own. The processes of writers and copiers are killed, or
  stopped while a successor begins under the same transactional id and continued later.
- Two transactional ids of the simulation's small clients over real sockets (`tests/simulation/transactional.py`). Their
  transactions speak the older or the newer protocol, and requests of theirs arrive late.
- A small reader of committed records for each partition, which notes the last stable offsets, too.

The oracles of `tests/simulation/oracles.py` check the histories of all of them together.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from ottla.net.streams import Connect, connect_tcp
from ottla.protocol.errors import KafkaError
from tests.crash.real_client import real_client
from tests.crash.transactional_clients import COPIERS, OVER, Task
from tests.simulation.client import FIND_COORDINATOR, OFFSET_FETCH, Client, Unavailable
from tests.simulation.committed import CommittedReader
from tests.simulation.history import Event, History, Key, name_of
from tests.simulation.oracles import check_all
from tests.simulation.transactional import GROUP, Habits, TransactionalId

WRITTEN: list[Key] = [("left", 0), ("left", 1), ("right", 2), ("right", 3)]  # an index is in one topic only
COPIES: list[Key] = [("copies", 0), ("copies", 1)]
PARTITIONS = {"left": 2, "right": 4, "copies": 2}
TIMEOUT_MS = 8000
SETTLES_WITHIN_S = 60.0
ENDS_WITHIN_S = 120.0
PATIENCE_S = 60.0
_LOOK_S = 0.1


@dataclass
class _Running:
    """A process of a task. `stopped_until` is the time at which it goes on, after a SIGSTOP."""

    task: Task
    process: subprocess.Popen[bytes]
    stopped_until: float = 0.0
    killed: bool = False


class Processes:
    """The processes of librdkafka's clients, and their journals in `folder`."""

    def __init__(self, folder: Path, clients: dict[str, str], random: Random) -> None:
        self.failed: list[str] = []
        self.counts: Counter[str] = Counter()
        self._folder = folder
        self._clients = clients
        self._random = random
        self._running: list[_Running] = []
        self._lives: Counter[str] = Counter()
        self._read: dict[str, int] = {}  # process → the bytes of its journal that were read
        folder.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Starts all clients."""
        for name in ("writer-0", "writer-1"):
            self._start("write", name, [], WRITTEN)
        for name in ("copier-0", "copier-1"):
            self._start("copy", name, WRITTEN, COPIES)
        self._start("read", "reader", [*WRITTEN, *COPIES], [])

    def tend(self) -> None:
        """Continues the processes whose stop is over, and starts a successor for each producer that has ended."""
        for each in list(self._running):
            if each.stopped_until and each.stopped_until <= time.monotonic():
                each.stopped_until = 0.0
                each.process.send_signal(signal.SIGCONT)
            code = each.process.poll()
            if code is None:
                continue
            self._running.remove(each)
            if code == OVER:
                self.counts["producers that were over"] += 1
            elif not each.killed:
                self.failed.append(f"{each.task.process} ended with {code}: {self._said(each.task)}")
            if not any(other.task.name == each.task.name for other in self._running):
                self._start_again(each.task)

    def upset(self) -> str:
        """Kills a producer's process, or stops it for a while. A successor takes its transactional id over. Returns
        what was done."""
        alive = [each for each in self._running if each.task.role != "read" and not each.stopped_until]
        if not alive:
            return ""
        victim = self._random.choice(alive)
        for older in self._running:  # where no broker answers, a predecessor doesn't learn that it is over
            if older.task.name == victim.task.name and older is not victim and not older.killed:
                self._kill(older)
        if self._random.random() < 0.5:
            self._kill(victim)
            what = "kill -9 of a producer"
        else:
            victim.process.send_signal(signal.SIGSTOP)
            victim.stopped_until = time.monotonic() + self._random.uniform(0.3, 8.0)
            what = "SIGSTOP of a producer, and a successor"
        self.counts[what] += 1
        self._start_again(victim.task)
        return f"{what}: {victim.task.process}"

    def stop(self, role: str, seconds: float = ENDS_WITHIN_S) -> None:
        """Lets the processes of a role end what they have begun."""
        for each in [each for each in self._running if each.task.role == role]:
            if each.stopped_until:
                self._kill(each)  # its successor has fenced it
            else:
                each.process.send_signal(signal.SIGTERM)
            try:
                code = each.process.wait(seconds)
            except subprocess.TimeoutExpired:
                each.process.send_signal(signal.SIGUSR1)
                time.sleep(1.0)
                self._kill(each)
                self.failed.append(
                    f"{each.task.process} doesn't end {seconds:g} s after SIGTERM: {self._said(each.task)}"
                )
                code = 0
            if code not in (0, OVER) and not each.killed:
                self.failed.append(f"{each.task.process} ended with {code}: {self._said(each.task)}")
            self._running.remove(each)

    def close(self) -> None:
        """Kills all processes."""
        for each in self._running:
            self._kill(each)

    def events(self) -> Iterator[Event]:
        """The events of all processes since the last call, those of each process in order."""
        running = {each.task.process for each in self._running}
        for process in list(self._read):
            with open(self._folder / f"{process}.jsonl", "rb") as file:
                file.seek(self._read[process])
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[process] += len(whole)
            if process not in running:
                del self._read[process]  # nothing follows
            for line in whole.splitlines():
                yield json.loads(line)

    def _start_again(self, task: Task) -> None:
        self._start(task.role, task.name, task.inputs, task.outputs)

    def _start(self, role: str, name: str, inputs: list[Key], outputs: list[Key]) -> None:
        self._lives[name] += 1
        process = f"{name}.{self._lives[name]}"
        self._read[process] = 0
        task = Task(
            role, name, process, sum(self._lives.values()), self._clients, self._random.randrange(1 << 32),
            inputs, outputs, TIMEOUT_MS, pause_s=0.2,
        )  # fmt: skip
        with (
            open(self._folder / f"{process}.jsonl", "wb") as journal,
            open(self._folder / f"{process}.err", "wb") as said,
        ):
            self._running.append(_Running(task, subprocess.Popen(task.command(), stdout=journal, stderr=said)))

    @staticmethod
    def _kill(each: _Running) -> None:
        each.killed = True
        each.process.kill()
        each.process.wait()

    def _said(self, task: Task) -> str:
        return (self._folder / f"{task.process}.err").read_text(errors="replace")[-1000:]


class TransactionalWorkload(threading.Thread):
    """All clients. Call `start`, then `finish`, which returns the violations.

    The small clients run on the event loop of this thread, which tends the processes, too. `connect` opens their
    streams; `clients` are the settings of librdkafka's.
    """

    def __init__(self, folder: Path, clients: dict[str, str], *, seed: int, connect: Connect = connect_tcp) -> None:
        super().__init__(name="transactions", daemon=True)
        self.history = History(time.monotonic)
        self.failed: list[str] = []
        self.events: list[Event] = []  # those of all clients in order, after `finish`
        self.ends: Counter[str] = Counter()  # transactions by their outcome and the kind of client
        self._random = Random(seed)
        self._processes = Processes(folder / "clients", clients, Random(seed + 1))
        self._connect = connect
        bootstrap = clients["bootstrap.servers"]
        self._addresses = [(host, int(port)) for host, _, port in (at.rpartition(":") for at in bootstrap.split(","))]
        self._clients: list[Client] = []
        self._foreign: list[Event] = []  # the processes' events
        self._consumed: dict[tuple[str, Key], int] = {}  # the readers' next positions
        self._seen = 0  # of the small clients' events
        self._closed = False
        self._working = True
        self._upsetting = True

    # ---- for the scenarios

    def committed(self) -> int:
        """The transactions whose commit was acknowledged so far."""
        return sum(count for name, count in self.ends.items() if "committed" in name)

    def wait_for_commits(self, more: int = 20, seconds: float = 60.0) -> None:
        """Waits until `more` further commits are acknowledged to each kind of client. Raises AssertionError."""
        kinds = ("librdkafka", "small")
        wanted = {kind: self.ends[f"{kind} committed"] + more for kind in kinds}
        deadline = time.monotonic() + seconds
        while any(self.ends[f"{kind} committed"] < count for kind, count in wanted.items()):
            assert time.monotonic() < deadline, f"no {more} commits within {seconds:g} s; so far {dict(self.ends)}"
            assert self.is_alive(), self.failed
            time.sleep(0.02)

    def calm(self) -> None:
        """Lets no further producer be killed or stopped."""
        self._upsetting = False

    def finish(self, seconds: float = 400.0) -> list[str]:
        """Stops the writers, lets the copiers and readers come to the end, and returns the violations that the oracles
        found."""
        self._working = False
        self.join(seconds)
        self._processes.close()
        wrong = [*self.failed, *self._processes.failed]
        if self.is_alive():
            wrong.insert(0, f"the clients haven't come to an end after {seconds:g} s")
        self._look()
        self.events = sorted([*self.history.events, *self._foreign], key=lambda event: event["t"])
        return [*wrong[:5], *check_all(self.events)]

    def close(self) -> None:
        """Kills the processes of the clients. The thread fails without them, or ends with this process."""
        self._closed = True
        self._processes.close()

    def summary(self) -> dict[str, int]:
        """What happened, by name."""
        counts = Counter(f"{event['op']} {event['phase']}" for event in [*self.history.events, *self._foreign])
        wanted = ("fence ok", "transaction ok", "write ok", "read ok", "consumed ok")
        late = {name: count for name, count in self.history.counts.items() if name.startswith("requests that")}
        return {**self.ends, **self._processes.counts, **late, **{name: counts[name] for name in wanted}}

    # ---- the thread

    def run(self) -> None:
        """Runs all clients until `finish`."""
        try:
            asyncio.run(self._run())
        except Exception as error:  # otherwise the error would be lost with the thread
            self.failed.append(f"the clients broke: {error!r}")
            raise
        finally:
            self._processes.close()

    async def _run(self) -> None:
        self.history.add("patience", "ok", seconds=PATIENCE_S)
        self._processes.start()
        habits = Habits(timeout_ms=4000, pause_s=0.4, depth=2)
        ids = [
            TransactionalId(self._client, "small-0", WRITTEN, habits, lambda: None),
            TransactionalId(self._client, "small-1", WRITTEN, replace(habits, newer=1.0), lambda: None),
        ]
        readers = [CommittedReader(self._client(f"small-reader-{name_of(key)}"), key) for key in (*WRITTEN, *COPIES)]
        reading = [asyncio.create_task(reader.run(0.3, 300)) for reader in readers]
        writing = [asyncio.create_task(each.run()) for each in ids]
        await self._until(lambda: not self._working, [*reading, *writing], forever=True)
        for each in ids:
            each.stopped = True
        await self._in_thread("write")
        await asyncio.gather(*writing)
        for each in ids:
            await each.take_over()  # ends what a dead producer has left open
        ends = [await self._settled(key) for key in WRITTEN]
        await self._until(lambda: self._copied(ends), reading)
        await self._in_thread("copy")
        for key in COPIES:
            await self._settled(key)
        await self._until(lambda: self._all_read(), reading)
        await self._in_thread("read")
        for reader in readers:
            reader.stopped = True
        await asyncio.gather(*reading)
        for index, key in enumerate(WRITTEN):
            await self._note_offset("settled input", COPIERS, key)
            if index == 0:
                for each in ids:
                    await self._note_offset("settled offset", each.group, key)
        for client in self._clients:
            client.close()

    def _client(self, name: str) -> Client:
        client = real_client(name, self._addresses, self._connect, self.history, self._random)
        self._clients.append(client)
        return client

    async def _until(self, over: Callable[[], bool], tasks: list[asyncio.Task[None]], *, forever: bool = False) -> None:
        """Tends the processes until `over` is true. Raises AssertionError if that takes too long, and the error of a
        task that fails."""
        deadline = time.monotonic() + ENDS_WITHIN_S
        next_upset = time.monotonic() + 1.0
        while not over():
            await asyncio.sleep(_LOOK_S)
            for task in tasks:
                if task.done():
                    task.result()
            self._look()
            if self._closed:
                raise AssertionError("the clients were ended before they had come to an end")
            self._processes.tend()
            if forever and self._upsetting and time.monotonic() > next_upset:
                next_upset = time.monotonic() + self._random.uniform(1.5, 5.0)
                if what := self._processes.upset():
                    self.history.notes.append((time.monotonic(), what))
            assert forever or time.monotonic() < deadline, f"the clients don't come to an end: {self._consumed}"

    async def _in_thread(self, role: str) -> None:
        await asyncio.to_thread(self._processes.stop, role)

    def _look(self) -> None:
        """Takes the events of the processes, and counts."""
        for event in self._processes.events():
            self._foreign.append(event)
            self._count("librdkafka", event)
        for event in self.history.events[self._seen :]:
            self._count("small", event)
        self._seen = len(self.history.events)

    def _count(self, kind: str, event: Event) -> None:
        if event["op"] == "end" and event["phase"] != "invoke":
            outcome = "committed" if event["commits"] else "aborted"
            self.ends[f"{kind} {outcome if event['phase'] == 'ok' else 'end ' + event['phase']}"] += 1
        elif event["op"] == "read" and event["phase"] == "ok":
            topic, index = event["partition"]
            self._consumed[event["process"], (topic, index)] = event["next"]
        elif event["op"] == "consumed":
            topic, index = event["partition"]
            known = self._consumed.get((COPIERS, (topic, index)), 0)
            self._consumed[COPIERS, (topic, index)] = max(known, event["next"])

    # ---- the end

    async def _settled(self, key: Key) -> tuple[Key, int]:
        """Reads a partition when no transaction is open in it, and notes its records. Returns the partition, and the
        offset behind its last committed record."""
        reader = CommittedReader(self._client(f"final-{name_of(key)}"), key)
        committed: list[tuple[int, str]] = []
        raw: list[tuple[int, str]] = []
        deadline = time.monotonic() + TIMEOUT_MS / 1000 + SETTLES_WITHIN_S
        while reader.position < reader.high_watermark or reader.high_watermark < 0:
            found = await reader.poll(100)
            committed.extend(found or ())
            raw.extend(() if found is None else reader.raw)
            if time.monotonic() > deadline:
                self.failed.append(
                    f"stuck: the last stable offset of {name_of(key)} is {reader.stable}, below the high watermark"
                    f" {reader.high_watermark}, although no producer is left"
                )
                return key, 0
            self._processes.tend()
        self.history.add("settled", "ok", partition=list(key), records=committed, raw=raw)
        return key, committed[-1][0] + 1 if committed else 0

    def _copied(self, ends: list[tuple[Key, int]]) -> bool:
        return all(self._consumed.get((COPIERS, key), 0) >= end for key, end in ends)

    def _all_read(self) -> bool:
        ends = {
            (event["partition"][0], event["partition"][1]): event["records"][-1][0] + 1
            for event in self.history.events
            if event["op"] == "settled" and event["records"]
        }
        return all(
            self._consumed.get((process, key), 0) >= end
            for key, end in ends.items()
            for process in ("reader.1", f"small-reader-{name_of(key)}")
        )

    async def _note_offset(self, op: str, group: str, key: Key) -> None:
        offset = await self._again(lambda: self._offset_of(group, key))
        self.history.add(op, "ok", group=group, partition=list(key), offset=offset)

    async def _offset_of(self, group: str, key: Key) -> int | None:
        """The stable offset of a group; None if this attempt fails."""
        client = self._client("final")
        topic, index = key
        message = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [index]}], "require_stable": True}
        with contextlib.suppress(Unavailable, KafkaError):
            found = await client.to_any(FIND_COORDINATOR, {"key": group, "key_type": GROUP})
            await client.refresh(topic)
            answer = await client.to_broker(found.node_id, OFFSET_FETCH, message)
            (result,) = answer.topics[0].partitions if not answer.error_code else (answer,)
            if not result.error_code:
                return int(result.committed_offset)
        await asyncio.sleep(_LOOK_S)
        return None

    @staticmethod
    async def _again(what: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Calls `what` until it returns something else than None."""
        deadline = time.monotonic() + SETTLES_WITHIN_S
        while (answer := await what()) is None:
            assert time.monotonic() < deadline, f"{what} doesn't work after {SETTLES_WITHIN_S:g} s"
        return answer
