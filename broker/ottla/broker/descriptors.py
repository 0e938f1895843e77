"""How many files and sockets the process may have open, and how many of them connections may take.

The log's segments keep theirs, and so does everything else: clients that open as many connections as they can never
keep the broker from its logs.
"""

from __future__ import annotations

import contextlib
import resource

from ottla.broker.log.segment import files_to_keep_open

PER_SEGMENT = 3
OTHERS = 128  # listening sockets, the metadata store, checkpoints, children, standard streams
CONNECTIONS_MIN = 16


def raise_limit() -> None:
    """Asks the system for as many as this process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # what it has must do then
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connections_max() -> int:
    """How many connections there may be."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = 2**31 - 1 if soft == resource.RLIM_INFINITY else soft
    return max(allowed - PER_SEGMENT * files_to_keep_open() - OTHERS, CONNECTIONS_MIN)
