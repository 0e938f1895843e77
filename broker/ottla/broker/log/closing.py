"""Closes many logs when a broker stops; an error of one log doesn't affect the others. Blocks."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from itertools import chain

from .log import Log

logger = logging.getLogger(__name__)

_CLOSED_AT_ONCE = 50  # logs in one task of a thread: most have nothing to write, and cost less than the task itself


def close_all(logs: Sequence[Log], pool: Executor) -> Iterator[tuple[Log, OSError]]:
    """Closes the logs in the threads of `pool`. Returns the logs that couldn't be closed, with their errors."""
    some = [logs[start : start + _CLOSED_AT_ONCE] for start in range(0, len(logs), _CLOSED_AT_ONCE)]
    return chain.from_iterable(pool.map(_close, some))


def _close(logs: Iterable[Log]) -> list[tuple[Log, OSError]]:
    failed = []
    for log in logs:
        try:
            log.close()
        except OSError as error:
            failed.append((log, error))
        except Exception as error:  # concerns this log alone; the next start recovers its log directory
            logger.exception("%r can't be closed because of a bug; the next start recovers it", log)
            failed.append((log, OSError(errno.EIO, str(error) or type(error).__name__)))
    return failed
