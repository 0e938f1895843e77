"""Counts the elections, faults and other events of a run, by the brokers' logs and the clients' history: a run that
lacks some of them proves nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

from tests.crash.workload import Workload
from tests.peers.ottla_cluster import OttlaCluster

_PATTERNS = {
    "elections": re.compile(r": leads in epoch [1-9]"),
    "truncations": re.compile(r": (truncates to|starts anew at) "),
    "ISR changes": re.compile(r": ISR \[.*, was \["),
    "registrations lost": re.compile(r"registration epoch \d+ is lost"),
    "controllers deposed": re.compile(r"controller .*: deposed"),
}
# A kill came between the creation of a partition's directory and that of the file in it with the topic's id.
_EXPLAINED = ("it has no partition.metadata",)
_WANTED = ("elections", "truncations", "ISR changes", "ambiguous writes", "faults")
_SENDS = ("sends repeated", "send unknown", "commit unknown")


in_all: Counter[str] = Counter()
"""The counts of all runs of this process."""


def never_seen() -> list[str]:
    """The names of the events that have to happen, but that no run of this process has seen."""
    return [name for name in _WANTED if not in_all[name]]


class Sightings:
    """The counts of one run. The scenario counts `faults` itself."""

    def __init__(self, cluster: OttlaCluster) -> None:
        self.faults: Counter[str] = Counter()
        self._cluster = cluster

    def summary(self, workload: Workload) -> dict[str, int]:
        """All counts by name. "ambiguous writes" are requests that were sent, but whose outcome the client learned only
        later or never."""
        text = "\n".join(broker.log_path.read_text(errors="replace") for broker in self._cluster.brokers)
        counts = {name: len(pattern.findall(text)) for name, pattern in _PATTERNS.items()}
        counts["ambiguous writes"] = sum(workload.count(name) for name in _SENDS)
        counts["assignments of the group"] = workload.count("assignments")
        counts["records acknowledged"] = workload.count("send ok")
        counts["faults"] = sum(self.faults.values())
        in_all.update(counts)
        return counts

    def unexplained(self, explained: Collection[str] = ()) -> list[str]:
        """Errors and tracebacks in the logs that contain none of the texts `explained`."""
        words = (*explained, *_EXPLAINED)
        return [
            f"broker {number}: {line}"
            for number, broker in enumerate(self._cluster.brokers)
            for line in broker.log_path.read_text(errors="replace").splitlines()
            if (line.startswith("Traceback") or " ERROR " in line or " CRITICAL " in line)
            and not any(each in line for each in words)
        ]

    def logged(self, number: int, words: str) -> bool:
        """Whether a broker's log contains these words."""
        return words in self._cluster.brokers[number].log_path.read_text(errors="replace")
