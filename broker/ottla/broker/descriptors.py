"""How many files and sockets the process may have open, and how many of them connections may take.

Descriptors are reserved for the logs' segments and for all other needs of the process. So however many connections
clients open, the broker can open its logs.
"""

from __future__ import annotations

import contextlib
import resource

from ottla.broker.log.segment import files_to_keep_open

PER_SEGMENT = 3
OTHERS = 128  # listening sockets, the metadata store, checkpoints, children, standard streams
CONNECTIONS_MIN = 16


def raise_limit() -> None:
    """Raises the limit of open files to the most that the system allows this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # the present limit stays in force
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connections_max() -> int:
    """How many connections the server may have open, by the limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = 2**31 - 1 if soft == resource.RLIM_INFINITY else soft
    return max(allowed - PER_SEGMENT * files_to_keep_open() - OTHERS, CONNECTIONS_MIN)
