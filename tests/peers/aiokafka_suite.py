"""aiokafka's own tests of transactions, against any broker.

    OTTLA_AIOKAFKA=FOLDER python -m tests.peers.aiokafka_suite HOST:PORT

No package has these tests, so FOLDER is a checkout of aiokafka's repository. As published, the tests start a broker in
a container. Here another `conftest.py` gives them the address of a running broker, and they test the aiokafka of this
environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

TESTS = ("test_transactional_producer.py", "test_transactional_consumer.py")
_CONFTEST = """
import asyncio
import os

import pytest


@pytest.fixture(scope="class")
def setup_test_class(request):
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    request.cls.loop = loop
    request.cls.hosts = os.environ["HOSTS"].split(",")
    request.cls.kafka_version = "4.0.0"
    yield
    loop.close()
    asyncio.set_event_loop(None)
"""


def checkout() -> Path:
    """The folder that OTTLA_AIOKAFKA names. Skips the test if the variable isn't set."""
    if "OTTLA_AIOKAFKA" not in os.environ:
        pytest.skip("needs a checkout of aiokafka, because its package has no tests: OTTLA_AIOKAFKA=FOLDER")
    return Path(os.environ["OTTLA_AIOKAFKA"])


def run(bootstrap: str, checkout: Path) -> dict[str, str]:
    """Runs the tests of a checkout. Returns test → "passed", "skipped" or "failed: why", in the order of the run."""
    source = checkout / "tests"
    with tempfile.TemporaryDirectory() as folder:
        tests = Path(folder) / "tests"
        tests.mkdir()
        for name in ("__init__.py", "_testutil.py", *TESTS):
            shutil.copy(source / name, tests / name)
        (tests / "conftest.py").write_text(_CONFTEST)
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "tests", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        done = subprocess.run(
            [*command, "--tb=native", "--timeout=120", "--timeout-method=signal"],
            cwd=folder,
            env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
            | {"HOSTS": bootstrap},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert report.exists(), done.stdout + done.stderr
        return dict(_outcome(case) for case in ElementTree.parse(report).iter("testcase"))


def _outcome(case: ElementTree.Element) -> tuple[str, str]:
    for tag, word in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        if (found := case.find(tag)) is not None:
            return str(case.get("name")), word if word == "skipped" else f"{word}: {found.text}"
    return str(case.get("name")), "passed"


def main() -> int:
    """Prints each outcome. Returns 0 if no test failed, else 1."""
    outcomes = run(sys.argv[1], checkout())
    for name, outcome in outcomes.items():
        print(f"{name}  {outcome}")
    return 1 if any(outcome.startswith("failed") for outcome in outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
