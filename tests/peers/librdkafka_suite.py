"""librdkafka's own tests, from the source that the crate `rdkafka-sys` carries, against any broker.

    python -m tests.peers.librdkafka_suite HOST:PORT [numbers of tests, such as 0103]

Test 0098 has a Java producer write. It is skipped unless RapidJSON (apt-get install rapidjson-dev) is there when the
tests are built.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.peers.apache_kafka import QUICK, jars
from tests.peers.tools import locked, need

CRATE = "4.10.0"  # carries librdkafka 2.12.1
# Those that use transactions or sequences. 0129 isn't among them: Apache Kafka 4 refuses its topic, too, whose
# segment.bytes is 20,000. Of 0137 only a part uses transactions.
TRANSACTIONS = ("0061", "0090", "0098", "0103")
NEED_THREE_BROKERS = ("0103",)  # their topics have three replicas
_MANIFEST = f"""
[package]
name = "sources"
version = "0.0.0"
edition = "2021"
[dependencies]
rdkafka-sys = "={CRATE}"
"""
_WITHOUT = ("WITH_SSL", "WITH_SASL", "WITH_CURL", "WITH_ZSTD", "ENABLE_LZ4_EXT", "RDKAFKA_BUILD_EXAMPLES")
_RAPIDJSON = Path("/usr/include/rapidjson/schema.h")


def runner() -> Path:
    """The program that runs the tests, which is built once. Its source is in `librdkafka` beside it."""
    need("cargo", "cmake", "c++", "make")
    with locked(f"librdkafka-{CRATE}{'-json' if _RAPIDJSON.exists() else ''}") as folder:
        source, build = folder / "librdkafka", folder / "build"
        if not (folder / ".done").exists():
            (folder / "src").mkdir(exist_ok=True)
            (folder / "src/lib.rs").touch()
            (folder / "Cargo.toml").write_text(_MANIFEST)
            _call(["cargo", "vendor", "--quiet", "vendor"], folder)
            shutil.rmtree(source, ignore_errors=True)
            shutil.copytree(folder / "vendor/rdkafka-sys/librdkafka", source)
            json_flag = " -DWITH_RAPIDJSON=1" if _RAPIDJSON.exists() else ""
            flags = [f"-DCMAKE_C_FLAGS=-O1{json_flag}", f"-DCMAKE_CXX_FLAGS=-O1{json_flag}", "-DRDKAFKA_BUILD_TESTS=ON"]
            off = [f"-D{option}=OFF" for option in _WITHOUT]
            _call(["cmake", "-S", str(source), "-B", str(build), "-DRDKAFKA_BUILD_STATIC=ON", *flags, *off], folder)
            # One source file asks whether this name is defined, and the configuration defines it as 0.
            config = build / "generated/config.h"
            config.write_text(config.read_text().replace("#define WITH_OAUTHBEARER_OIDC 0\n", ""))
            _call(["make", "-C", str(build), "-j2", "test-runner"], folder)
            _as_a_distribution(folder / "kafka")
            (folder / ".done").touch()
        return build / "tests/test-runner"


def run(bootstrap: str, numbers: Sequence[str] = TRANSACTIONS) -> dict[str, str]:
    """Runs tests one after the other. Returns test → "PASSED", "SKIPPED", or "FAILED" and the output."""
    program = runner()
    folder = program.parents[2]
    with tempfile.TemporaryDirectory() as out:
        config, report = Path(out) / "test.conf", Path(out) / "report.json"
        config.write_text(f"bootstrap.servers={bootstrap}\ntest.timeout.multiplier=5\n")
        added = {
            "TESTS": ",".join(numbers),
            "RDKAFKA_TEST_CONF": str(config),
            "TEST_REPORT": str(report),
            "TEST_KAFKA_VERSION": "4.0.0",
            "KAFKA_PATH": str(folder / "kafka"),
            "LD_LIBRARY_PATH": f"{folder}/build/src:{folder}/build/src-cpp",
        }
        done = subprocess.run(
            [str(program), "-p1"],
            cwd=folder / "librdkafka/tests",
            env={name: value for name, value in os.environ.items() if name != "CI"} | added,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=1500,
            check=False,
        )
        output = done.stdout + done.stderr
        assert report.exists(), output[-4000:]
        tests = json.loads(report.read_text())["tests"]
    ran = {name: test["state"] for name, test in tests.items() if name[:4] in numbers}
    return {name: state if state != "FAILED" else f"{state}\n{output[-8000:]}" for name, state in ran.items()}


def _as_a_distribution(folder: Path) -> None:
    """Puts what the tests use of Apache Kafka's distribution into `folder`: jars, and the script that runs a class."""
    script = folder / "bin/kafka-run-class.sh"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(f'#!/bin/sh\nexec java -Xmx256M {" ".join(QUICK)} -cp "$CLASSPATH:{jars("kafka")}" "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    (folder / "libs").unlink(missing_ok=True)
    (folder / "libs").symlink_to(jars("kafka").removesuffix("/*"))


def _call(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def main() -> int:
    """Prints each outcome. Returns 0 if no test failed, else 1."""
    outcomes = run(sys.argv[1], sys.argv[2:] or TRANSACTIONS)
    for name, outcome in outcomes.items():
        print(f"{name}  {outcome}")
    return 1 if any(outcome.startswith("FAILED") for outcome in outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
