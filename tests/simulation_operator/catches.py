"""Which seed catches which planted bug: the table `caught.txt`, how it is made, and how it is replayed.

A seed catches a bug if its run fails with the bug planted and passes without. What a seed means changes with the
operator (each request draws random numbers), so a replay goes on with the seeds behind the recorded one, up to a bound.

`python -m tests.simulation_operator.catches [--bug NAME …]` makes the table anew; `--replay` runs it, and with
`--seconds 20` as much of it as can be begun in that time.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.simulation.swarm import with_fixed_hashes

TABLE = Path(__file__).with_name("caught.txt")
SEEDS = range(200)
TRIED_MAX = 40  # seeds behind the recorded one
_HEAD = "# planted bug | first seed of 0-199 that catches it | what that run says\n"


class Catch(NamedTuple):
    """The first seed that caught a bug, and the first sentence of what was wrong."""

    seed: int
    why: str


def recorded() -> dict[str, Catch]:
    """The table."""
    rows = [line.split(" | ", 2) for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    return {name: Catch(int(seed), why) for name, seed, why in rows}


def first_caught(name: str, seeds: Iterable[int]) -> Catch | None:
    """The first seed that catches the bug of that name."""
    from tests.simulation_operator.planted import planted
    from tests.simulation_operator.scenario import simulate

    for seed in seeds:
        with planted(name):
            verdict = simulate(seed)
        if verdict.wrong and not simulate(seed).wrong:
            return Catch(seed, verdict.wrong[0].splitlines()[-1].strip()[:150])
    return None


def main() -> int:
    """1 where a bug isn't caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bug", action="append", default=[], help="only this one; more than once for some")
    parser.add_argument("--replay", action="store_true", help="run the recorded seeds")
    parser.add_argument("--seconds", type=float, default=0.0, help="replay what can be begun in that time")
    options = parser.parse_args()
    with_fixed_hashes("tests.simulation_operator.catches")
    logging.disable(logging.CRITICAL)
    from tests.simulation_operator.planted import BUGS

    table = recorded() if TABLE.exists() else {}
    left = []
    ends = time.monotonic() + options.seconds if options.seconds else float("inf")
    for name in options.bug or BUGS:
        if time.monotonic() > ends:
            print("… and no time for the others")
            break
        begin = table[name].seed if options.replay else 0
        tried = range(begin, begin + TRIED_MAX + 1) if options.replay else SEEDS
        found = first_caught(name, tried)
        print(f"{name}: {found or 'not caught'}", flush=True)
        if found is None:
            left.append(name)
        elif not options.replay:
            table[name] = found
            rows = [f"{bug} | {table[bug].seed} | {table[bug].why}\n" for bug in BUGS if bug in table]
            TABLE.write_text(_HEAD + "".join(rows))
    return 1 if left else 0


if __name__ == "__main__":
    raise SystemExit(main())
