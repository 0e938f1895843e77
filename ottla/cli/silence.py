"""The warnings of `ottla consume` while no record comes: the reason may be a missing leader or coordinator.

A run warns once of a missing leader or coordinator. If the leader or coordinator is missing for longer than
`--timeout`, a run that ends by itself fails; a run without an end continues.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ottla.cli import availability
from ottla.cli.errors import CommandError

if TYPE_CHECKING:
    from kafka import KafkaConsumer

    from ottla.cli.connection import Cluster
    from ottla.cli.output import Output

_FIRST_LOOK_S = 3.0
_NEXT_LOOK_S = 10.0


class Silence:
    """Checks, once no record has come for a while, whether a leader or coordinator is missing."""

    def __init__(
        self, cluster: Cluster, output: Output, consumer: KafkaConsumer, group: str | None, *, ends: bool
    ) -> None:
        self._cluster = cluster
        self._output = output
        self._consumer = consumer
        self._group = group
        self._ends = ends
        self._warned = ""
        self.broken()

    def broken(self) -> None:
        """Ends the silence. The caller calls this method whenever records have come."""
        self.since = time.monotonic()
        self._next_look = self.since + min(_FIRST_LOOK_S, self._cluster.timeout_s)

    def goes_on(self) -> None:
        """The caller calls this method after a poll without a record. From time to time the method checks
        whether a leader or coordinator is missing, and warns of it. Raises CommandError if a run that ends by itself
        has waited for longer than the time-out."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + min(_NEXT_LOOK_S, self._cluster.timeout_s)
        try:
            self.check()
        except CommandError as error:
            if self._ends and now - self.since >= self._cluster.timeout_s:
                raise
            if error.message != self._warned:
                self._warned = error.message
                self._output.warn(error.message, error.remedy)
        else:
            self._warned = ""

    def check(self) -> None:
        """Raises CommandError if the group has no coordinator, or if a partition that is read has no leader."""
        if self._group is not None:
            availability.check_coordinator(self._cluster, self._group)
        availability.check_leaders(self._cluster, self._consumer.assignment())
