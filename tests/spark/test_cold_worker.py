"""The cache of compiled kernels: the CPU time of a new worker process, and cache directories that can't be written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.peers.tools import ROOT

# A multiple of the CPU time that Spark's daemon takes to load. Measured: 2.4 to 3.5, and 11 to 22 without a cache.
FIRST_BATCH_MULTIPLE_MAX = 6.0

# Numba tries to write to a directory before it uses it. The permissions of a directory don't stop root, as which the
# test may run, so numba's check itself refuses here.
NOWHERE = """
import os
from numba.core import caching
real = caching._CacheLocator.ensure_cache_path
def ensure(self):
    if not self.get_cache_path().startswith(os.environ["WRITABLE"]):
        raise PermissionError(self.get_cache_path())
    real(self)
caching._CacheLocator.ensure_cache_path = ensure
"""
DECODE = """
import json, sys, time
began = time.process_time()
import pyarrow as pa
import pyspark.worker
forked = time.process_time()  # Spark's daemon has loaded so much when it forks a worker
from ottla.protocol.batches import Record, build_batch
import ottla.spark.reading
from ottla.spark import compiling, kernel
from ottla.spark.decode import decode
from ottla.spark.schema import ARROW_TYPES
from ottla.spark.selection import select
data = build_batch([Record(0, 5, b"k", b"v", [("h", b"x")])])
made = list(decode(data, select(data, 0, 9), 0, 9, "t", 0, pa.schema(list(ARROW_TYPES.items()))))
cost = time.process_time() - forked
kernels = [each for each in vars(kernel).values() if hasattr(each, "stats")]
compiled = sum(sum(each.stats.cache_misses.values()) for each in kernels)
rows = sum(each.num_rows for each in made)
print(json.dumps([cost, forked - began, rows, compiled, compiling._config.CACHE_DIR]))
"""


class Worker(NamedTuple):
    """The measurements of a new worker process."""

    first_batch_s: float
    """CPU seconds from the worker's fork to its first batch."""
    before_s: float
    """CPU seconds that Spark's daemon took to load before it forked the worker."""
    rows: int
    compiled: int
    """The number of kernels that weren't in the cache."""
    cache: str
    """The directory in which numba was set to keep its code."""


def run(program: str, **environment: str) -> Worker:
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return Worker(*json.loads(done.stdout))


def test_the_first_batch_of_a_cold_worker_takes_little_more_than_spark_itself() -> None:
    """The limit is a multiple of the CPU time that Spark's daemon takes to load, because machines differ in speed.

    The test compares the least of five measurements of each time.
    """
    run(DECODE)
    workers = [run(DECODE) for _ in range(5)]
    assert [each.compiled for each in workers] == [0] * len(workers)
    first_batch_s, before_s = (min(times) for times in zip(*((each[0], each[1]) for each in workers), strict=True))
    print(f"first batch of a cold worker: {first_batch_s:.2f} s of CPU, Spark's daemon {before_s:.2f} s")
    assert first_batch_s < FIRST_BATCH_MULTIPLE_MAX * before_s


def test_a_cache_directory_that_cannot_be_written() -> None:
    """Numba then uses the next directory of its list."""
    assert run(DECODE, NUMBA_CACHE_DIR="/dev/null/kernels").rows == 1


def test_a_read_only_system_keeps_kernels_among_temporary_files(tmp_path: Path) -> None:
    place = tmp_path / f"ottla-kernels-{os.getuid()}"
    given = {"WRITABLE": str(tmp_path), "TMPDIR": str(tmp_path), "NUMBA_CACHE_DIR": ""}
    first = run(NOWHERE + DECODE, **given)
    assert (first.rows, first.cache) == (1, str(place))
    assert first.compiled > 0
    assert place.stat().st_mode & 0o777 == 0o700
    assert list(place.rglob("*.nbc"))
    assert run(NOWHERE + DECODE, **given).compiled == 0
