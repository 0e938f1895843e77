"""Runs the benchmarks: `python -m bench`, or `python -m bench produce latency` for some of the questions. The
environment variable FAST=1 makes the runs about ten times shorter. ONLY=produce,latency selects questions if no
argument does."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time
import traceback
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from bench.pair import Plan
from bench.picture import draw
from bench.table import Row, markdown
from ottla.protocol import record_walk

QUESTIONS = (
    "startup",
    "memory",
    "small_requests",
    "produce",
    "consume",
    "tls",
    "latency",
    "groups",
    "transactions",
    "loop_held",
    "reconnects",
    "replication",
    "failover",
    "partitions",
    "many_partitions",
    "create_topics",
    "spark_read",
    "spark_write",
)
RESULTS = Path(__file__).parent / "results"
KAFKA_VERSION = "4.3.1"


def main() -> int:
    """Prints the table and writes `results/latest.json` and `.png`. Returns 0 if every question has an answer and all
    goals are met, else 1.

    If the native record walk isn't built, measures nothing and returns 2: its slower Python twin would falsify the
    figures. Raises SystemExit with 2 for an unknown question."""
    if not record_walk.NATIVE:
        print(f"bench: {record_walk.WITHOUT_NATIVE}", file=sys.stderr)
        return 2
    plan = Plan(fast=os.environ.get("FAST", "") not in ("", "0"))
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=f"one of {', '.join(QUESTIONS)}")
    only = parser.parse_args().questions or [name for name in os.environ.get("ONLY", "").split(",") if name]
    if unknown := set(only) - set(QUESTIONS):
        parser.error(f"no such question: {', '.join(sorted(unknown))}; there are {', '.join(QUESTIONS)}")
    asked = only or list(QUESTIONS)
    RESULTS.mkdir(exist_ok=True)
    answers: dict[str, list[Row]] = {}
    for name in asked:
        began = time.monotonic()
        try:
            answers[name] = importlib.import_module(f"bench.{name}").run(plan)
        except Exception:  # a question that fails must not lose the others' results, which take hours
            print(f"\n{name} has no answer:\n{traceback.format_exc()}", flush=True)
            continue
        print(f"\n{name} ({time.monotonic() - began:.0f} s)\n{markdown(answers[name])}", flush=True)
        _keep(name, plan, answers[name])  # a file for each question, so that a full run can be made in parts
    rows = [row for answered in answers.values() for row in answered]
    if len(asked) > 1:
        print(f"\n{markdown(rows)}")
    _keep("latest", plan, rows)
    draw(rows, RESULTS / "latest.png")
    return 0 if len(answers) == len(asked) and all(row.verdict != "no" for row in rows) else 1


def _keep(name: str, plan: Plan, rows: list[Row]) -> None:
    record = {**machine(plan), "rows": [row.record() for row in rows]}
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1))


def machine(plan: Plan) -> dict[str, object]:
    """The date, the versions and the machine of a run."""
    info = Path("/proc/cpuinfo").read_text()
    model = next((line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")), "")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "fast": plan.fast,
        "ottla": version("ottla"),
        "kafka": KAFKA_VERSION,
        "python": platform.python_version(),
        "python_build": [*platform.python_build(), platform.python_compiler()],
        "librdkafka": version("confluent-kafka"),
        "cores": os.cpu_count(),
        "processor": model,
        "kernel": platform.release(),
    }


if __name__ == "__main__":
    sys.exit(main())
