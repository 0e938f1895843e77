"""Gives existing topics more replicas when `ottla dev` starts with more brokers than before.

By default a topic has as many replicas as there are brokers, up to three. The internal topics do, too. A topic
that has at least the former default gets the new default. A topic with fewer replicas keeps them, because a user chose
their number. A file in the data directory has the default that the topics have now. `ottla dev` writes the file when it
has begun the moves: from then on the controller carries out the moves, even if `ottla dev` ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.cli.errors import CommandError
from ottla.cli.output import Output
from ottla.wording import counted

if TYPE_CHECKING:
    from ottla.cli.connection import Cluster
    from ottla.placement import PartitionName, Replicas

REPLICATION_MAX = 3
_FILE = "ottla-dev.replication"
_NAMED_MAX = 5


def default_factor(brokers: int) -> int:
    """The number of replicas that a topic gets by default."""
    return min(REPLICATION_MAX, brokers)


class Growth:
    """The default replication factor that a data directory's topics have, and the one that they are to have."""

    def __init__(self, directory: Path, known_brokers: int, brokers: int, kept: Collection[str]) -> None:
        """`kept`: the topics for which the user gave a replication factor; they keep their replicas."""
        self.wanted = default_factor(brokers)
        self._file = directory / _FILE
        self._kept = kept
        self._present = self._read(known_brokers)

    def _read(self, known_brokers: int) -> int:
        try:
            return int(self._file.read_text())
        except (OSError, ValueError):  # at a first start there is no file; old versions wrote none
            return default_factor(known_brokers) if known_brokers else self.wanted

    def topics(self, present: Mapping[PartitionName, Replicas]) -> list[str]:
        """The names of the topics that are to get more replicas."""
        lacking = {name[0] for name, replicas in present.items() if self._present <= len(replicas) < self.wanted}
        return sorted(lacking.difference(self._kept))

    def carry_out(self, cluster: Cluster, output: Output, pause: Callable[[], bool]) -> None:
        """Begins the moves that add replicas, and waits until they are done. Raises CommandError.

        `pause` is called before each new check of the moves. If it returns true, the wait ends, and the controller
        completes the moves alone.
        """
        from ottla.cli import moves, reassign

        topics = self.topics(moves.assignments(cluster)) if self._present < self.wanted else []
        planned: Mapping[PartitionName, Replicas] = {}
        if topics:
            _, planned = moves.resizing(cluster, topics, self.wanted)
            moves.begin(cluster, planned)
        self._file.write_text(f"{self.wanted}\n")
        if not planned:
            return
        named = ", ".join(topics[:_NAMED_MAX]) + (", …" if len(topics) > _NAMED_MAX else "")
        output.note(
            f"The cluster has more brokers now: {counted(len(planned), 'partition')} get {self.wanted} replicas"
            f" ({named})."
        )
        with reassign.progress(len(planned)) as show:
            while left := set(moves.under_way(cluster)).intersection(planned):
                show(len(planned) - len(left))
                if pause():
                    return
        output.note(f"All of these partitions have {self.wanted} in-sync replicas now.")


def failed(error: CommandError, factor: int) -> str:
    """The sentence for a failure to give the topics `factor` replicas."""
    return f"Not every topic has {factor} replicas: {error.line()} To add them: ottla topics alter NAME -r {factor}"
