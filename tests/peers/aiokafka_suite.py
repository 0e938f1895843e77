"""aiokafka's own tests of transactions and of secured brokers, against any broker.

    OTTLA_AIOKAFKA=FOLDER python -m tests.peers.aiokafka_suite HOST:PORT

No package has these tests, so FOLDER is a checkout of aiokafka's repository. As published, the tests start a broker in
a container. Here another `conftest.py` gives them the address of a running broker, and they test the aiokafka of this
environment. Tests of GSSAPI are left out.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

TRANSACTIONS = ("test_transactional_producer.py", "test_transactional_consumer.py")
SECURED = (
    "test_sasl.py",
    "test_producer.py::TestKafkaProducerIntegration::test_producer_ssl",
    "test_consumer.py::TestConsumerIntegration::test_ssl_consume",
)
KEY_PASSWORD = "abcdefgh"  # with which the tests open the key of a client's certificate
USERS = {"test": "test"}  # the user as whom the tests log in, by PLAIN and by SCRAM
_CONFTEST = '''
import asyncio
import json
import os
from pathlib import Path

import pytest
from confluent_kafka.admin import *

GIVEN = json.loads(os.environ["SECURED"])


class AclManager:
    """Adds ACLs, as the tests' own class does by kafka-acls."""

    def __init__(self):
        self._admin = AdminClient(GIVEN["admin"])
        self._made = []

    def list_acl(self):
        everything = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        return self._admin.describe_acls(everything).result(30)

    def add_acl(self, *, operation, allow_principal=None, deny_principal=None, cluster=False, **resource):
        (kind, name), = [("broker", "kafka-cluster")] if cluster else resource.items()
        acl = AclBinding(
            ResourceType[kind.upper()],
            name,
            ResourcePatternType.LITERAL,
            f"User:{allow_principal or deny_principal}",
            "*",
            AclOperation[operation.upper()],
            AclPermissionType.ALLOW if allow_principal else AclPermissionType.DENY,
        )
        self._admin.create_acls([acl])[acl].result(30)
        self._made.append(acl)

    def cleanup(self):
        made, self._made = self._made, []
        for acl in made:
            fields = (acl.restype, acl.name, acl.resource_pattern_type, acl.principal, acl.host, acl.operation)
            acls = AclBindingFilter(*fields, acl.permission_type)
            self._admin.delete_acls([acls])[acls].result(30)


class KafkaConfig:
    """Adds users, as the tests' own class does by kafka-configs."""

    def add_scram_user(self, user, password):
        admin = AdminClient(GIVEN["admin"])
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            login = UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), password.encode())
            admin.alter_user_scram_credentials([login])[user].result(30)


@pytest.fixture(scope="class")
def setup_test_class(request):
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    request.cls.loop = loop
    request.cls.hosts = os.environ["HOSTS"].split(",")
    request.cls.kafka_version = "4.0.0"
    request.cls.kafka_host = "127.0.0.1"
    if GIVEN["admin"]:
        request.cls.kafka_ssl_port = GIVEN["ports"]["SSL"]
        request.cls.kafka_sasl_plain_port = GIVEN["ports"]["SASL_PLAINTEXT"]
        request.cls.ssl_folder = Path(GIVEN["certificates"])
        request.cls.acl_manager = AclManager()
        request.cls.kafka_config = KafkaConfig()
    yield
    loop.close()
    asyncio.set_event_loop(None)
'''


@dataclass(frozen=True)
class SecuredBroker:
    """What the tests of secured brokers need."""

    ports: Mapping[str, int] = field(default_factory=dict)  # of the listeners: protocol → port
    admin: Mapping[str, str] = field(default_factory=dict)  # librdkafka's settings of a client that may do everything
    certificates: str = ""  # the folder with ca.crt, client.crt and client.key


def checkout() -> Path:
    """The folder that OTTLA_AIOKAFKA names. Skips the test if the variable isn't set."""
    if "OTTLA_AIOKAFKA" not in os.environ:
        pytest.skip("needs a checkout of aiokafka, because its package has no tests: OTTLA_AIOKAFKA=FOLDER")
    return Path(os.environ["OTTLA_AIOKAFKA"])


def run(
    bootstrap: str,
    checkout: Path,
    tests: Sequence[str] = TRANSACTIONS,
    secured: SecuredBroker = SecuredBroker(),
) -> dict[str, str]:
    """Runs the tests of a checkout. Returns test → "passed", "skipped" or "failed: why", in the order of the run."""
    source = checkout / "tests"
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / "tests"
        copied.mkdir()
        for name in ("__init__.py", "_testutil.py", *(test.partition("::")[0] for test in tests)):
            shutil.copy(source / name, copied / name)
        (copied / "conftest.py").write_text(_CONFTEST)
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", *(f"tests/{test}" for test in tests), f"--junitxml={report}", "-q"]
        options = ["-p", "no:cacheprovider", "-k", "not gssapi", "--tb=native", "--timeout=120"]
        given = {"ports": dict(secured.ports), "admin": dict(secured.admin), "certificates": secured.certificates}
        done = subprocess.run(
            [*command, *options, "--timeout-method=signal"],
            cwd=folder,
            env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
            | {"HOSTS": bootstrap, "SECURED": json.dumps(given)},
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
