"""What a run has seen, counted from the brokers' logs and the clients' history: who saw nothing proves nothing."""

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
# A kill between the making of a partition's directory and of the file that says whose it is.
_EXPLAINED = ("it has no partition.metadata",)
_WANTED = ("elections", "truncations", "ISR changes", "ambiguous writes", "faults")
_SENDS = ("sends repeated", "send unknown", "commit unknown")


in_all: Counter[str] = Counter()
"""The counts of all runs of this process."""


def never_seen() -> list[str]:
    """What no run of this process has seen although it should."""
    return [name for name in _WANTED if not in_all[name]]


class Sightings:
    """Counts of one run; `faults` are noted by the scenario."""

    def __init__(self, cluster: OttlaCluster) -> None:
        self.faults: Counter[str] = Counter()
        self._cluster = cluster

    def summary(self, workload: Workload) -> dict[str, int]:
        """Everything by name. "ambiguous writes" were sent, and the client wasn't told what became of them."""
        text = "\n".join(broker.log_path.read_text(errors="replace") for broker in self._cluster.brokers)
        counts = {name: len(pattern.findall(text)) for name, pattern in _PATTERNS.items()}
        counts["ambiguous writes"] = sum(workload.count(name) for name in _SENDS)
        counts["assignments of the group"] = workload.count("assignments")
        counts["records acknowledged"] = workload.count("send ok")
        counts["faults"] = sum(self.faults.values())
        in_all.update(counts)
        return counts

    def unexplained(self, explained: Collection[str] = ()) -> list[str]:
        """Lines of the logs that no fault explains: errors, and tracebacks."""
        words = (*explained, *_EXPLAINED)
        return [
            f"broker {number}: {line}"
            for number, broker in enumerate(self._cluster.brokers)
            for line in broker.log_path.read_text(errors="replace").splitlines()
            if (line.startswith("Traceback") or " ERROR " in line or " CRITICAL " in line)
            and not any(each in line for each in words)
        ]

    def logged(self, number: int, words: str) -> bool:
        """Whether a broker's log has these words."""
        return words in self._cluster.brokers[number].log_path.read_text(errors="replace")
