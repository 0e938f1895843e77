"""Writes and replays the table `caught.txt`, which has for each planted bug a seed that catches it.

A seed catches a bug if the seed's run fails with the bug planted and passes without it. A change of the product changes
the runs of all seeds, because each random number that is drawn differently makes another run. So if a recorded seed
doesn't catch its bug any more, the replay goes on with the seeds after it, up to a bound. A replay may therefore miss a
bug that only few seeds catch, although the swarm still catches it.

`python -m tests.simulation.catches --seeds 0-499 [--bug NAME …]` writes the table (or the lines of these bugs)
anew. `--replay` runs the recorded seeds; with `--seconds 30` no run begins after that time.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from .catch_table import Catch, CatchTable
from .fixed_hashes import with_fixed_hashes
from .swarm import outcomes, planting


def first_caught(name: str, seeds: Iterable[int]) -> Catch | None:
    """The first seed that catches the bug of that name."""
    for seed in seeds:
        (planted,) = outcomes([seed], 1, planting(name))
        if planted.wrong:
            (sound,) = outcomes([seed], 1)
            if not sound.wrong:
                return Catch(seed, planted.wrong[0].splitlines()[0][:150])
    return None


TABLE = CatchTable(Path(__file__).with_name("caught.txt"), "0-499", first_caught)


def main() -> int:
    """Returns the exit code: 1 if a bug isn't caught, else 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-499", help="FIRST-LAST")
    parser.add_argument("--bug", action="append", default=[], help="only this bug; repeat the option for several bugs")
    parser.add_argument("--replay", action="store_true", help="run the recorded seeds")
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="begin no replay after so many seconds (0: no limit)"
    )
    options = parser.parse_args()
    with_fixed_hashes("tests.simulation.catches")
    if options.replay:
        return 1 if TABLE.replay(options.seconds) else 0
    from .planted import BUGS

    first, _, last = options.seeds.partition("-")
    return 1 if TABLE.record(options.bug or BUGS, BUGS, range(int(first), int(last or first) + 1)) else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # without destroying the objects of the first runs
