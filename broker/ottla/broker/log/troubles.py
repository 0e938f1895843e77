"""What goes wrong with single logs while they are looked after.

An error of one log must not end the care of the others, and one that comes back with every round must not fill the
broker's log: it is said when it begins and when it changes, counted each time, and the round goes on with the next log.
"""

from __future__ import annotations

import logging
from collections import Counter

from .log import Log

logger = logging.getLogger(__name__)


class Troubles:
    """Of one broker's logs. `counts` are by duty, since the start."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._said: dict[tuple[Log, str], str] = {}

    def met(self, duty: str, log: Log, error: Exception, *, expected: bool = False) -> None:
        """A duty failed for a log; where that wasn't `expected`, the place in the program is said, too."""
        self.counts[duty] += 1
        problem = str(error) or type(error).__name__
        if self._said.get((log, duty)) != problem:
            self._said = {key: said for key, said in self._said.items() if not key[0].retired}
            self._said[log, duty] = problem
            logger.error(
                "%r: %s failed and is tried again: %s", log, duty, problem, exc_info=None if expected else error
            )

    def over(self, duty: str, log: Log) -> None:
        """It worked."""
        if self._said and self._said.pop((log, duty), None) is not None:
            logger.info("%r: %s works again", log, duty)
