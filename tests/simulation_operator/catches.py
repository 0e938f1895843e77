"""Writes and replays the table `caught.txt`, which has for each planted bug a seed that catches it.

A seed catches a bug if the seed's run fails with the bug planted and passes without it. A change of the operator
changes the runs of all seeds, because each request draws random numbers. So if a recorded seed doesn't catch its bug
any more, the replay goes on with the seeds after it, up to a bound. A bug that few seeds catch, with a recorded seed
above that bound, isn't missed if no tried seed catches it.

`python -m tests.simulation_operator.catches [--bug NAME …]` writes the table anew; `--replay` runs its seeds, and with
`--seconds 20` no run begins later than 20 seconds after the start.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable
from pathlib import Path

from tests.simulation.catch_table import Catch, CatchTable
from tests.simulation.fixed_hashes import with_fixed_hashes

SEEDS = range(1000)


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


TABLE = CatchTable(Path(__file__).with_name("caught.txt"), "0-999", first_caught)


def main() -> int:
    """Returns the exit code: 1 if a bug isn't caught, else 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bug", action="append", default=[], help="only this bug; may be given several times")
    parser.add_argument("--replay", action="store_true", help="run the recorded seeds")
    parser.add_argument("--seconds", type=float, default=0.0, help="replay the seeds whose runs begin within this time")
    options = parser.parse_args()
    with_fixed_hashes("tests.simulation_operator.catches")
    logging.disable(logging.CRITICAL)
    from tests.simulation_operator.planted import BUGS

    if options.replay:
        return 1 if TABLE.replay(options.seconds, options.bug) else 0
    return 1 if TABLE.record(options.bug or BUGS, BUGS, SEEDS) else 0


if __name__ == "__main__":
    raise SystemExit(main())
