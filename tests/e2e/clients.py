"""Runs in a pod: the clients of `tests/crash/workload.py`, until the file /tmp/finish exists, and then their oracles.

Each second a line of JSON reports the clients' progress. The last line has the violations that the oracles found. Then
the process stays for a while, so that the history can be fetched from /tmp/history.jsonl.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.crash.workload import Workload

FINISH = Path("/tmp/finish")
HISTORY = Path("/tmp/history.jsonl")
FETCHED_WITHIN_S = 600.0


def main() -> None:
    """Runs the clients and the oracles. Exits with 1 if the oracles found a violation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--records-per-second", type=int, default=50)
    options = parser.parse_args()
    workload = Workload(
        options.bootstrap, options.partitions, seed=time.time_ns(), records_per_s=options.records_per_second
    )
    workload.start()
    while not FINISH.exists() and workload.is_alive():
        say(workload)
        time.sleep(1)
    wrong = workload.finish()
    HISTORY.write_text("".join(f"{line}\n" for line in workload.history.lines()))
    say(workload, wrong=wrong)
    deadline = time.monotonic() + FETCHED_WITHIN_S
    while FINISH.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    sys.exit(bool(wrong))


def say(workload: Workload, **more: Any) -> None:
    """Prints one line of JSON."""
    times = sorted(workload.acknowledged[-200:])
    found = {
        "acknowledged": len(workload.acknowledged),
        "latency_s": round(times[-1][1], 3) if times else None,
        "silence_s": round(workload.longest_silence_s, 2) if "wrong" in more else None,
        "worst_s": round(workload.latency_s(0.999), 3) if times and "wrong" in more else None,
        "rebalances": workload.count("assignments") - 2,
        "failed": workload.failed[:3],
    }
    print(json.dumps({**found, **more}), flush=True)


if __name__ == "__main__":
    main()
