"""kafka-python's own integration tests, from its source distribution, against any broker.

    python -m tests.peers.kafka_python_suite HOST:PORT [pytest arguments]

The archive lacks two files that its tests import, so they are added; everything else is as published. Some tests (TLS,
logins) start brokers themselves: with `Listeners` they are given running brokers instead, and without they aren't run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.peers.tools import locked

VERSION = "3.0.12"
KAFKA_VERSION = "4.3"  # selects the tests, and the requests that the client sends
USER, PASSWORD = "alice", "alice-secret"  # as whom the tests log in
_STARTS_ITS_OWN_BROKERS = ["test/integration/test_ssl_integration.py", "test/integration/test_sasl_integration.py"]
_SERVICE = """
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass

    def dump_logs(self):
        pass


class SpawnedService:
    def __init__(self, *args, **kwargs):
        raise RuntimeError("this run starts no broker of its own")
"""

# In place of brokers that tests would start, their fixture is given the listener of the wanted protocol.
_GIVEN_BROKERS = """
import json, os
from test.integration.fixtures import KafkaFixture
from kafka import KafkaAdminClient

given = json.loads(os.environ["GIVEN_BROKERS"])
external = KafkaFixture.instance.__func__


def instance(cls, broker_id, *, transport=given["protocol"], sasl_mechanism=None, partitions=4, **_):
    if transport.startswith("SASL"):
        sasl_mechanism = sasl_mechanism or given["mechanism"]
    host, _, port = given["addresses"][transport].partition(":")
    made = external(
        cls, broker_id, host=host, port=int(port), external=True, transport=transport,
        sasl_mechanism=sasl_mechanism, partitions=partitions,
    )
    made.ssl_dir = given["certificates"]
    return made


def get_topic_names(self):
    with KafkaAdminClient(**self._enrich_client_params({})) as admin:
        return admin.list_topics()


KafkaFixture.instance = classmethod(instance)
KafkaFixture.get_topic_names = get_topic_names
"""


@dataclass(frozen=True)
class Listeners:
    """A broker's listeners, for tests that would start brokers of their own. All clients use `protocol` and
    `mechanism`, unless a test asks for others. The user is USER."""

    addresses: Mapping[str, str]  # protocol → host:port
    certificates: Path  # the folder with the authority's certificate, `ca-cert`
    protocol: str = "SASL_SSL"
    mechanism: str = "SCRAM-SHA-512"


def sources() -> Path:
    """The folder of the unpacked source distribution, which is fetched once."""
    with locked("kafka-python") as cache:
        folder = cache / f"kafka_python-{VERSION}"
        if not (folder / ".done").exists():
            archive = ["--no-deps", "--no-binary", ":all:", "--dest", str(cache), f"kafka-python=={VERSION}"]
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, *archive], check=True, timeout=300)
            with tarfile.open(cache / f"kafka_python-{VERSION}.tar.gz") as tar:
                tar.extractall(cache, filter="data")
            (folder / ".done").touch()
        (folder / "test/__init__.py").touch()
        (folder / "test/service.py").write_text(_SERVICE)
    return folder


def run_twice_where_it_fails(bootstrap: str, known: Collection[str]) -> dict[str, str]:
    """As `run`, but a test that fails and isn't `known` to fail runs once more, alone. Some of these tests depend on
    the speed of the machine: on a busy machine they also fail against Apache Kafka."""
    outcomes = run(bootstrap)
    failed = [name for name, outcome in outcomes.items() if outcome.startswith("failed") and name not in known]
    for name in failed:
        module, _, test = name.partition("::")
        print(f"{bootstrap}: {name} {outcomes[name][:300]}; once more")
        outcomes |= run(bootstrap, tests=f"test/integration/{module}.py::{test}")
    return outcomes


def run(
    bootstrap: str,
    *arguments: str,
    tests: str = "test/integration",
    test_timeout: int = 60,
    listeners: Listeners | None = None,
) -> dict[str, str]:
    """Runs the tests. Returns test → "passed", "skipped: why" or "failed: why", in the order of the run."""
    folder = sources()
    with tempfile.TemporaryDirectory() as out:
        environment = _environment(folder, bootstrap)
        if listeners is None:
            chosen = [f"--ignore={path}" for path in _STARTS_ITS_OWN_BROKERS]
        else:
            chosen = ["-p", "given_brokers"]
            (Path(out) / "given_brokers.py").write_text(_GIVEN_BROKERS)
            environment |= {
                "PYTHONPATH": f"{folder}:{out}",
                "GIVEN_BROKERS": json.dumps(asdict(listeners), default=str),
            }
            del environment["KAFKA_URI"]
        report = Path(out) / "report.xml"
        options = ["-q", "-p", "no:cacheprovider", "--tb=short", f"--timeout={test_timeout}", "--timeout-method=signal"]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                tests,
                *chosen,
                *options,
                f"--junitxml={report}",
                *arguments,
            ],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert report.exists(), done.stdout + done.stderr
        return dict(_outcome(case) for case in ElementTree.parse(report).iter("testcase"))


def _environment(folder: Path, bootstrap: str) -> dict[str, str]:
    added = {
        "PYTHONPATH": str(folder),
        "KAFKA_ROOT": str(folder),  # the folder only has to exist
        "KAFKA_URI": f"kafka://{bootstrap}",
        "KAFKA_VERSION": KAFKA_VERSION,
    }
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | added


def _outcome(case: ElementTree.Element) -> tuple[str, str]:
    name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
    for tag, word in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        if (found := case.find(tag)) is not None:
            return name, f"{word}: {found.get('message', '')}"
    return name, "passed"


def main() -> int:
    """Prints each outcome and the counts. Returns 0 if no test failed, else 1."""
    outcomes = run(sys.argv[1], *sys.argv[2:])
    for name, outcome in outcomes.items():
        print(f"{name}  {outcome[:200]}")
    counts = {
        word: sum(outcome.startswith(word) for outcome in outcomes.values()) for word in ("passed", "failed", "skipped")
    }
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
