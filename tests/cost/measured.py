"""`python -m tests.cost.measured`: after a thread has ended, prints the CPU time of each of five windows of 2 ms.

It is a process of its own, because the CPU time of a process includes its children's, and children of pytest may be
running.
"""

from __future__ import annotations

import os
import threading
import time

from bench.process import cpu_seconds

WINDOW_S = 0.002


def burn(seconds: float) -> None:
    """Uses this much CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def main() -> None:
    burns = threading.Thread(target=burn, args=(0.3,))
    burns.start()
    burns.join()
    for _ in range(5):
        before = cpu_seconds(os.getpid())
        burn(WINDOW_S)
        print(cpu_seconds(os.getpid()) - before)


if __name__ == "__main__":
    main()
