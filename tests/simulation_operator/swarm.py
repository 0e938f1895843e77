"""Many seeds: `python -m tests.simulation_operator.swarm --seeds 0-9999`.

One process runs one seed after the other; runs share nothing but code. To use four processes, start `--part 0/4` to
`--part 3/4`: each takes every fourth seed. Strings hash the same everywhere (PYTHONHASHSEED is set before Python
starts), so a seed always gives the same run. When the swarm is interrupted, it ends the run that has begun, and prints
its counts up to then.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

from tests.simulation.fixed_hashes import with_fixed_hashes
from tests.simulation.interruption import Interruption

ENOUGH_RUNS = 60  # in so many runs each kind of fault and each action must have happened
# Events that a swarm must have seen, besides all actions of people; otherwise it has not tested them.
SEEN = (
    "another process took over",
    "statuses compared",
    "rights looked at",
    "several brokers of a rack away at once",
    "done: links changed",
    "links of all brokers encrypted",
    "epilogue: invalid",
    "epilogue: paused",
    "epilogue: refused",
    "epilogue: restarted in two racks",
    "epilogue: resized by restarts",
    "epilogue: resized in place",
    "epilogue: rights",
    "epilogue: scaled down and back",
    *(
        f"fault: {kind}"
        for kind in (
            "broker's page silent",
            "etcd silent",
            "event told twice",
            "events come later",
            "events late after a Cluster was made again",
            "watch ended",
            "kafka: no answer",
            "kafka: not done, no answer",
            "kafka: done, no answer",
            "kafka: a topic's change refused",
            "operator died before a write",
            "operator died after a write",
            "operator died before a change of the brokers",
            "operator died after a change of the brokers",
            "read answered late",
            "write answered late",
            "write done twice",
            "write done, no answer",
            "request timed out, not done",
            *(f"request refused: {status}" for status in (403, 409, 422, 429, 500, 503)),
        )
    ),
)


def never_seen(counts: Counter[str]) -> list[str]:
    """The events and actions that a swarm should have seen and didn't."""
    from tests.simulation_operator.scenario import Run

    done = (f"done: {name}" for name in Run(0).person.actions)
    return [name for name in (*SEEN, *done) if not counts[name]]


def main() -> int:
    """Returns the exit code: 1 if a seed failed, or an event or action never happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-99", help="FIRST-LAST")
    parser.add_argument(
        "--part", default="0/1", help="run only a part of the seeds: NUMBER/OF, such as 0/4 for every fourth"
    )
    parser.add_argument("--seconds", type=float, default=0.0, help="begin no further run after this time")
    parser.add_argument("--planted", default="", help="with this bug planted")
    options = parser.parse_args()
    with_fixed_hashes("tests.simulation_operator.swarm")
    from tests.simulation_operator.planted import planted
    from tests.simulation_operator.scenario import simulate

    logging.disable(logging.CRITICAL)
    first, _, last = options.seeds.partition("-")
    number, _, of = options.part.partition("/")
    began = time.monotonic()
    counts: Counter[str] = Counter()
    failing = []
    runs = 0
    interruption = Interruption()
    with planted(options.planted):
        for seed in range(int(first) + int(number), int(last or first) + 1, int(of)):
            if interruption or (options.seconds and time.monotonic() - began > options.seconds):
                break
            verdict = simulate(seed)
            runs += 1
            counts += verdict.counts
            if verdict.wrong:
                failing.append(seed)
                print(f"seed {seed} fails (digest {verdict.digest}):", *verdict.wrong[:5], sep="\n  ", flush=True)
                print(f"  again: PYTHONHASHSEED=0 {sys.executable} -m tests.simulation_operator.scenario {seed}")
    for name, count in sorted(counts.items()):
        print(f"{count:10d}  {name}")
    print(f"{runs} runs in {time.monotonic() - began:.0f} s ({time.process_time():.0f} s of CPU)")
    print(f"failing: {failing}" if failing else "no seed fails")
    if interruption:
        print(interruption)
        return interruption.exit_code
    unseen = never_seen(counts)
    if unseen and not options.planted:
        print(f"never happened: {', '.join(unseen)}")
    return 1 if failing or (unseen and not options.planted and runs >= ENOUGH_RUNS) else 0


if __name__ == "__main__":
    raise SystemExit(main())
