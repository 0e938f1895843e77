"""The table of the planted bugs that a swarm catches: each line has a bug, the first seed that catches it, and the
first violation in that seed's run."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import NamedTuple

TRIED_MAX = 40  # seeds after the recorded one


class Catch(NamedTuple):
    """The first seed that caught a bug, and the first violation in its run."""

    seed: int
    why: str


FirstCaught = Callable[[str, Iterable[int]], Catch | None]
"""(name of a bug, seeds) → the first of these seeds that catches the bug."""


class CatchTable:
    """The file `caught.txt` of a swarm: writes it, and replays the seeds in it."""

    def __init__(self, file: Path, seeds: str, first_caught: FirstCaught) -> None:
        """`seeds` are the tried seeds, as a text such as `0-499`."""
        self._file = file
        self._head = f"# planted bug | first seed of {seeds} that catches it | the run's first violation\n"
        self._first_caught = first_caught

    def recorded(self) -> dict[str, Catch]:
        """The rows of the file, by the name of the bug."""
        rows = [line.split(" | ", 2) for line in self._file.read_text().splitlines() if not line.startswith("#")]
        return {name: Catch(int(seed), why) for name, seed, why in rows}

    def record(self, names: Iterable[str], bugs: Iterable[str], seeds: Iterable[int]) -> list[str]:
        """Finds, for each bug of `names`, the first seed that catches the bug, and writes the file in the order of
        `bugs` (all bugs). Returns the bugs that no seed catches; the file loses the lines of these bugs."""
        table = self.recorded() if self._file.exists() else {}
        left = []
        for name in names:
            began = time.monotonic()
            found = self._first_caught(name, seeds)
            if found is None:
                left.append(name)
                table.pop(name, None)
            else:
                table[name] = found
            print(f"{name}: {found or 'not caught'} ({time.monotonic() - began:.0f} s)", flush=True)
            lines = [f"{bug} | {table[bug].seed} | {table[bug].why}\n" for bug in bugs if bug in table]
            self._file.write_text(self._head + "".join(lines))
        return left

    def replay(self, seconds: float, names: Collection[str] = ()) -> list[str]:
        """Runs the recorded seeds of these bugs, or of all bugs. No run begins after `seconds` (0: no limit). Returns
        the bugs that no tried seed catches any more, without bugs that few seeds catch: their recorded seed is above
        TRIED_MAX."""
        left = []
        ends = time.monotonic() + seconds if seconds else float("inf")
        for name, catch in self.recorded().items():
            if names and name not in names:
                continue
            if time.monotonic() > ends:
                print("… the time is over: the other bugs weren't replayed")
                break
            found = self._first_caught(name, range(catch.seed, catch.seed + TRIED_MAX + 1))
            if found is None and catch.seed <= TRIED_MAX:
                left.append(name)
            print(f"{name}: {found or 'not caught any more'}", flush=True)
        return left
