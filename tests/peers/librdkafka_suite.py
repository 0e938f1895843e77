"""librdkafka's own tests, from the source that the crate `rdkafka-sys` carries, against any broker.

    python -m tests.peers.librdkafka_suite HOST:PORT [numbers of tests, such as 0103]

librdkafka is built with TLS, PLAIN, SCRAM and OAUTHBEARER, but without GSSAPI. Two tests are skipped unless a library's
headers are there when the tests are built: 0098, in which a Java producer writes, needs RapidJSON (apt-get install
rapidjson-dev), and 0126, in which clients fetch tokens, needs libcurl (apt-get install libcurl4-openssl-dev).
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.peers.apache_kafka import QUICK, TOOLS, jars
from tests.peers.tools import locked, need

CRATE = "4.10.0"  # carries librdkafka 2.12.1
# Those that use transactions or sequences. 0129 isn't among them: Apache Kafka 4 refuses its topic, too, whose
# segment.bytes is 20,000. Of 0137 only a part uses transactions.
TRANSACTIONS = ("0061", "0090", "0098", "0103")
NEED_THREE_BROKERS = ("0103", "0126", "0142")  # their topics have three replicas
_MANIFEST = f"""
[package]
name = "sources"
version = "0.0.0"
edition = "2021"
[dependencies]
rdkafka-sys = "={CRATE}"
"""
# Those about TLS, logins and rights. 0115 and 0119 call kafka-acls without a login, and are skipped at listeners with
# TLS or logins.
CERTIFICATES = ("0097",)
RIGHTS = ("0115", "0119")
LOGINS = ("0128", "0135", "0142")
TOKENS = ("0126", "0128", "0142")
ADMINISTRATION = ("0081",)
# Ordinary ones: producers, consumers, groups, offsets, topics.
ORDINARY = (
    *("0001", "0003", "0005", "0008", "0011", "0012", "0017", "0019", "0022", "0026", "0030", "0033", "0045", "0050"),
    *("0069", "0073", "0084", "0089", "0099", "0118", "0130"),
)
# WITH_SASL stands for GSSAPI, and would need the headers of another library.
_WITH = ("WITH_SSL", "WITH_SASL_SCRAM", "WITH_SASL_OAUTHBEARER", "RDKAFKA_BUILD_TESTS", "RDKAFKA_BUILD_STATIC")
_WITHOUT = ("WITH_SASL", "WITH_ZSTD", "ENABLE_LZ4_EXT", "RDKAFKA_BUILD_EXAMPLES")
_RAPIDJSON = Path("/usr/include/rapidjson/schema.h")
_SCRIPT = '#!/bin/sh\nexec java -Xmx256M {options} -cp "$CLASSPATH:{jars}" {main} "$@"\n'


def runner() -> Path:
    """The program that runs the tests, which is built once. Its source is in `librdkafka` beside it."""
    need("cargo", "cmake", "c++", "make", "openssl.h")
    curl, with_json = fetches_tokens(), _RAPIDJSON.exists()
    with locked(f"librdkafka-{CRATE}-ssl{'-curl' * curl}{'-json' * with_json}") as folder:
        source, build = folder / "librdkafka", folder / "build"
        if not (folder / ".done").exists():
            (folder / "src").mkdir(exist_ok=True)
            (folder / "src/lib.rs").touch()
            (folder / "Cargo.toml").write_text(_MANIFEST)
            _call(["cargo", "vendor", "--quiet", "vendor"], folder)
            shutil.rmtree(source, ignore_errors=True)
            shutil.copytree(folder / "vendor/rdkafka-sys/librdkafka", source)
            optimised = f"-O1{' -DWITH_RAPIDJSON=1' * with_json}"
            flags = [f"-DCMAKE_C_FLAGS={optimised}", f"-DCMAKE_CXX_FLAGS={optimised}"]
            flags += [f"-D{option}=ON" for option in _WITH] + [f"-D{option}=OFF" for option in _WITHOUT]
            flags.append(f"-DWITH_CURL={'ON' if curl else 'OFF'}")
            _call(["cmake", "-S", str(source), "-B", str(build), *flags], folder)
            # One source file asks whether this name is defined, and the configuration defines it as 0.
            config = build / "generated/config.h"
            config.write_text(config.read_text().replace("#define WITH_OAUTHBEARER_OIDC 0\n", ""))
            _call(["make", "-C", str(build), "-j2", "test-runner"], folder)
            _as_a_distribution(folder / "kafka")
            (folder / ".done").touch()
        return build / "tests/test-runner"


def fetches_tokens() -> bool:
    """Whether librdkafka is built so that it can fetch tokens from an identity provider."""
    found = ["pkg-config", "--exists", "libcurl"]
    return shutil.which("pkg-config") is not None and subprocess.run(found, check=False).returncode == 0


def run(
    bootstrap: str,
    numbers: Sequence[str] = TRANSACTIONS,
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Runs tests one after the other. Returns test → "PASSED", "SKIPPED", or "FAILED" and the output. `settings` are
    librdkafka's, for all clients of the tests; some tests read variables of the `environment`."""
    program = runner()
    folder = program.parents[2]
    with tempfile.TemporaryDirectory() as out:
        config, report = Path(out) / "test.conf", Path(out) / "report.json"
        properties = {"bootstrap.servers": bootstrap, "test.timeout.multiplier": "5"} | dict(settings or {})
        config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
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
            env={name: value for name, value in os.environ.items() if name != "CI"} | added | dict(environment or {}),
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
    """Puts what the tests use of Apache Kafka's distribution into `folder`: jars, the script that runs a class, and
    kafka-acls."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    for name, main in (("kafka-run-class", ""), ("kafka-acls", TOOLS["acls"])):
        script = folder / "bin" / f"{name}.sh"
        script.write_text(_SCRIPT.format(options=" ".join(QUICK), jars=jars("kafka"), main=main))
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
