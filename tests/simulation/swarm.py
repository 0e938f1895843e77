"""Many seeds in parallel processes: `python -m tests.simulation.swarm --seeds 0-999 [--jobs 2]`.

Each run is a fork of a process that has everything imported and has made a run itself: the work that Python and the
product do only once (schemas, specialised code) is half the cost of a run. Because each run is a fork, runs can't
influence each other, and no objects of a finished run have to be freed. Strings hash the same everywhere
(PYTHONHASHSEED is set before Python starts). When the swarm is interrupted, it prints its counts up to then.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import selectors
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

from .fixed_hashes import with_fixed_hashes
from .interruption import Interruption

RUN_CPU_SECONDS_MAX = 120  # CPU time of a run; on a busy machine the run may take longer
WARM_UP_SEEDS = (1, 4)  # runs with whole clusters and many kinds of fault
LOOK_S = 0.5  # the time between two checks whether the swarm is interrupted
ENOUGH_RUNS = 100  # a swarm of at least so many runs fails if a kind of fault never happened

# Events that a swarm must have seen; otherwise it has not tested them.
SEEN = (
    "elections",
    "unclean elections",
    "compactions",
    "joins under load",
    "truncations",
    "ISR changes",
    "store replaced by a copy",
    "store replaced by a copy that is ahead",
    "ambiguous writes",
    "send ok",
    "end ok",
    "end fail",
    "end unknown",
    "plain commit ok",
    "settled offset ok",
    "requests that arrived late",
    "commit ok",
    "registrations ended",
    "store: rejected",
    "disk: lost changes",
    "topic changes checked on another broker",
    "topic changes answered before a slow broker applied them",
)


class Outcome(NamedTuple):
    """The result of a forked run."""

    seed: int
    digest: str
    wrong: list[str]
    counts: dict[str, int]
    virtual_s: float
    seconds: float


def outcomes(
    seeds: Iterable[int],
    jobs: int,
    prepare: Callable[[], None] = lambda: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Iterator[Outcome]:
    """Yields the outcome of each seed as soon as its run has ended. When the swarm is interrupted, unfinished runs are
    killed.
    """
    scenario = _warm()
    waiting = iter(seeds)
    running: dict[int, tuple[int, int, float]] = {}  # read end → pid, seed, begun
    buffers: dict[int, bytearray] = {}
    with selectors.DefaultSelector() as selector:
        while True:
            while len(running) < jobs and (seed := next(waiting, None)) is not None:
                reading, writing = os.pipe()
                pid = os.fork()
                if not pid:
                    os.close(reading)
                    _run(scenario, seed, writing, prepare)
                os.close(writing)
                running[reading] = (pid, seed, time.monotonic())
                buffers[reading] = bytearray()
                selector.register(reading, selectors.EVENT_READ)
            if not running:
                return
            ready = selector.select(LOOK_S)
            if interrupted():
                _end(pid for pid, _, _ in running.values())
                return
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                if data:
                    buffers[key.fd] += data
                    continue
                selector.unregister(key.fd)
                os.close(key.fd)
                pid, seed, begun = running.pop(key.fd)
                _, status = os.waitpid(pid, 0)
                seconds = time.monotonic() - begun
                content = bytes(buffers.pop(key.fd))
                if content:
                    yield Outcome(seed, *json.loads(content), seconds)
                else:
                    yield Outcome(seed, "", [f"the process ended with status {status}"], {}, 0.0, seconds)


def _end(pids: Iterable[int]) -> None:
    """Kills the processes of unfinished runs."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@cache
def _warm() -> Any:
    """Imports the module that makes runs, and makes some runs before processes are forked. Returns the module."""
    from . import scenario

    gc.collect()
    gc.disable()  # the objects of these runs aren't collected
    for seed in WARM_UP_SEEDS:
        scenario.simulate(seed)
    gc.freeze()
    return scenario


def _run(scenario: Any, seed: int, writing: int, prepare: Callable[[], None]) -> None:
    """Makes a run in the child process, and writes its result to `writing`."""
    signal.setitimer(signal.ITIMER_PROF, RUN_CPU_SECONDS_MAX)  # ends the process
    try:
        try:
            prepare()
            verdict = scenario.simulate(seed)
            content = json.dumps([verdict.digest, verdict.wrong, dict(verdict.counts), verdict.virtual_s])
        except Exception:
            content = json.dumps(["", [traceback.format_exc()], {}, 0.0])
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(content.encode())
    finally:
        os._exit(0)


def main() -> int:
    """Returns the swarm's exit code: 1 if a seed failed or a kind of event never happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-99", help="FIRST-LAST")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="start no further run after so many seconds (0: no limit)"
    )
    parser.add_argument(
        "--planted", default="", help="plant this bug before each run (`catches.py` finds the seeds that catch a bug)"
    )
    parser.add_argument("--stop", action="store_true", help="begin no further run after the first seed that fails")
    options = parser.parse_args()
    with_fixed_hashes("tests.simulation.swarm")
    first, _, last = options.seeds.partition("-")
    ends = time.monotonic() + options.seconds if options.seconds else float("inf")
    failing: list[int] = []
    interruption = Interruption()

    def seeds() -> Iterator[int]:
        for seed in range(int(first), int(last or first) + 1):
            if interruption or time.monotonic() > ends or (failing and options.stop):
                return
            yield seed

    counts: Counter[str] = Counter()
    runs = 0
    virtual_s = 0.0
    began = time.monotonic()

    for outcome in outcomes(seeds(), options.jobs, planting(options.planted), lambda: bool(interruption)):
        runs += 1
        counts.update(outcome.counts)
        virtual_s += outcome.virtual_s
        if outcome.wrong:
            failing.append(outcome.seed)
            print(f"seed {outcome.seed} fails (digest {outcome.digest}):", flush=True)
            for sentence in outcome.wrong:
                print(f"  {sentence}", flush=True)
            planted = f" --planted {options.planted!r}" if options.planted else ""
            print(
                "  to repeat this run: PYTHONHASHSEED=0"
                f" {sys.executable} -m tests.simulation.scenario {outcome.seed}{planted}",
                flush=True,
            )
    seconds = time.monotonic() - began
    for name, count in sorted(counts.items()):
        print(f"{count:10d}  {name}")
    print(f"{runs} runs, {virtual_s:.0f} virtual s in {seconds:.0f} s, {runs / max(seconds, 1e-9):.1f} runs/s")
    print(f"failing: {sorted(failing)}" if failing else "no seed fails")
    if interruption:
        print(interruption)
        return interruption.exit_code
    unseen = never_seen(counts)
    if unseen and not options.planted:
        print(f"never happened: {', '.join(unseen)}")
    return 1 if failing or (unseen and runs >= ENOUGH_RUNS) else 0


def planting(name: str) -> Callable[[], None]:
    """A function that plants the bug of this name; with an empty name it does nothing."""

    def prepare() -> None:
        if name:
            from .planted import plant

            plant(name)

    return prepare


def never_seen(counts: Counter[str]) -> list[str]:
    """The kinds of events and faults that a swarm should have seen and didn't."""
    from .faults import KINDS, OF_TRANSACTIONS

    return [name for name in (*SEEN, *(f"fault: {kind}" for kind in KINDS | OF_TRANSACTIONS)) if not counts[name]]


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # without destroying the objects of the first runs
