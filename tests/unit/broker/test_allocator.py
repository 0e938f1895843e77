"""The allocator keeps freed memory for the process: the test starts a process that sets its allocator, and counts its
page faults."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from tests.peers.tools import ROOT

TIMES = 200
COUNT = """
import resource
from ottla.broker.allocator import keep_freed_memory
if {kept}:
    assert keep_freed_memory()
def work():
    blocks = [bytearray(300_000) for _ in range(5)]
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({times}):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*, kept: bool) -> int:
    done = subprocess.run(
        [sys.executable, "-c", COUNT.format(kept=kept, times=TIMES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such thresholds")
def test_blocks_of_a_large_request_are_not_faulted_in_again() -> None:
    assert faults(kept=True) < TIMES
    assert faults(kept=False) > 100 * TIMES
