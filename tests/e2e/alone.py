"""One run of the scenarios at a time on this machine: all of them share the operator that they install, take away and
upgrade, and the names of images, so two runs at once judge each other's doings."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = Path(tempfile.gettempdir(), "ottla-e2e.lock")


@contextmanager
def alone(lock: Path = LOCK) -> Iterator[None]:
    """Waits until nobody else is here. What was held by a process that died is free."""
    with lock.open("a") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another run of the scenarios is under way and holds {lock}: this one waits for its end", flush=True)
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
