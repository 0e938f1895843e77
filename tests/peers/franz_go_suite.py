"""franz-go's own tests, against any broker."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping

from tests.peers.tools import ROOT, go_program

_PACKAGE = "github.com/twmb/franz-go/pkg/kgo"
_OUTCOME = re.compile(r"^ *--- (PASS|FAIL|SKIP): (\S+)", re.MULTILINE)


def run(
    bootstrap: str,
    factor: int,
    tests: str,
    records: int,
    partitions: int,
    timeout_s: int,
    environment: Mapping[str, str] | None = None,
    left_out: str = "",
) -> tuple[dict[str, str], str]:
    """Runs the tests whose names match the pattern `tests`. Returns test → "PASS", "FAIL" or "SKIP", and the whole
    output. Their topics have `factor` replicas and at most `partitions` partitions, and get `records` records. The
    variables KGO_TEST_TLS, KGO_TEST_SCRAM and KGO_TEST_SCRAM_SEEDS of the `environment` are about secured brokers.
    Tests that match the pattern `left_out` aren't run."""
    program = go_program(ROOT / "tests/conformance/go", _PACKAGE, "kgo.test", tests=True)
    settings = {
        "KGO_SEEDS": bootstrap,
        "KGO_TEST_RF": str(factor),
        "KGO_TEST_RECORDS": str(records),
        "KGO_TEST_MAX_TOPIC_PARTS": str(partitions),
        "KGO_TEST_UNSAFE": "1",
        "KGO_LOG_LEVEL": "none",
    } | dict(environment or {})
    done = subprocess.run(
        [str(program), "-test.run", tests, "-test.skip", left_out, "-test.v", f"-test.timeout={timeout_s}s"],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    output = done.stdout + done.stderr
    outcomes = {name: outcome for outcome, name in _OUTCOME.findall(done.stdout)}
    assert (done.returncode == 0) == ("FAIL" not in outcomes.values()), output[-12_000:]
    return outcomes, output
