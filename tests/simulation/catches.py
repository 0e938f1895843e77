"""Which seed catches which planted bug: the table `caught.txt`, how it is made, and how it is replayed.

A seed catches a bug if its run fails with the bug planted and passes without. What a seed means changes with the
product (every random number that is drawn differently makes another run), so a replay that fails goes on with the seeds
behind the recorded one, up to a bound. Bugs that few seeds catch may be missed by that; the table made anew says by how
many.

`python -m tests.simulation.catches --seeds 0-499 [--bug NAME …]` makes the table (or those lines of it) anew;
`--replay` runs it, `--replay --seconds 30` as much of it as can be begun in that time.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from .swarm import outcomes, planting, with_fixed_hashes

TABLE = Path(__file__).with_name("caught.txt")
TRIED_MAX = 40  # seeds behind the recorded one
_HEAD = "# planted bug | first seed of 0-499 that catches it | what that run says\n"


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
    for seed in seeds:
        (planted,) = outcomes([seed], 1, planting(name))
        if planted.wrong:
            (sound,) = outcomes([seed], 1)
            if not sound.wrong:
                return Catch(seed, planted.wrong[0].splitlines()[0][:150])
    return None


def record(names: Sequence[str], seeds: range) -> list[str]:
    """Finds who catches these bugs and writes it into the table; those that nobody catches."""
    from .planted import BUGS

    table = recorded() if TABLE.exists() else {}
    left = []
    for name in names:
        began = time.monotonic()
        found = first_caught(name, seeds)
        if found is None:
            left.append(name)
            table.pop(name, None)
        else:
            table[name] = found
        print(f"{name}: {found or 'not caught'} ({time.monotonic() - began:.0f} s)", flush=True)
        lines = [f"{bug} | {table[bug].seed} | {table[bug].why}\n" for bug in BUGS if bug in table]
        TABLE.write_text(_HEAD + "".join(lines))
    return left


def replay(seconds: float) -> list[str]:
    """Runs the table, or what of it can be begun in that time (0: all); the bugs that many seeds caught, and none
    catches any more."""
    left = []
    ends = time.monotonic() + seconds if seconds else float("inf")
    for name, catch in recorded().items():
        if time.monotonic() > ends:
            print("… and no time for the others")
            break
        found = first_caught(name, range(catch.seed, catch.seed + TRIED_MAX + 1))
        if found is None and catch.seed <= TRIED_MAX:
            left.append(name)
        print(f"{name}: {found or 'not caught any more'}", flush=True)
    return left


def main() -> int:
    """1 where a bug isn't caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-499", help="FIRST-LAST")
    parser.add_argument("--bug", action="append", default=[], help="only this one; more than once for some")
    parser.add_argument("--replay", action="store_true", help="run the recorded seeds")
    parser.add_argument("--seconds", type=float, default=0.0, help="replay what can be begun in that time")
    options = parser.parse_args()
    with_fixed_hashes("tests.simulation.catches")
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # kio would load it
    if options.replay:
        return 1 if replay(options.seconds) else 0
    from .planted import BUGS

    first, _, last = options.seeds.partition("-")
    return 1 if record(options.bug or list(BUGS), range(int(first), int(last or first) + 1)) else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the first runs' worlds aren't to be taken apart
