"""Allows one run of the scenarios at a time on this machine. All runs share the operator, which scenarios install,
remove and upgrade, and the names of images, so two runs would disturb each other."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = Path(tempfile.gettempdir(), "ottla-e2e.lock")


@contextmanager
def alone(lock: Path = LOCK) -> Iterator[None]:
    """Waits until no other run has the lock. A process that dies releases its lock."""
    with lock.open("a") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another run of the scenarios is under way and holds {lock}: this one waits for its end", flush=True)
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
