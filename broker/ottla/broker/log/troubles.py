"""Errors of single logs in the duties of upkeep and compaction.

An error of one log must not end the upkeep of the others, and a recurring error must not fill the broker's log. So an
error is logged when it begins and when it changes, and counted each time, and the duty goes on with the next log.
"""

from __future__ import annotations

import logging
from collections import Counter

from .log import Log

logger = logging.getLogger(__name__)


class Troubles:
    """The errors of one broker's logs. `counts` has the number of errors by duty, since the broker's start."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._said: dict[tuple[Log, str], str] = {}

    def met(self, duty: str, log: Log, error: Exception, *, expected: bool = False) -> None:
        """Notes that a duty failed for a log, and logs the error, with its traceback unless it was `expected`."""
        self.counts[duty] += 1
        problem = str(error) or type(error).__name__
        if self._said.get((log, duty)) != problem:
            self._said = {key: said for key, said in self._said.items() if not key[0].retired}
            self._said[log, duty] = problem
            logger.error(
                "%r: %s failed and is tried again: %s", log, duty, problem, exc_info=None if expected else error
            )

    def over(self, duty: str, log: Log) -> None:
        """Notes that a duty succeeded for a log."""
        if self._said and self._said.pop((log, duty), None) is not None:
            logger.info("%r: %s works again", log, duty)
