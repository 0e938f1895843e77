"""The commands that the Spark image's entrypoint makes of the arguments and variables of Spark's Kubernetes backend."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
HOME = Path("/spark")
ASKED = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "768m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "job-exec-3",
}


@pytest.fixture(scope="module")
def entrypoint() -> ModuleType:
    spec = importlib.util.spec_from_file_location("entrypoint", ROOT / "docker/spark/entrypoint.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_driver_is_spark_submit_in_client_mode(entrypoint: ModuleType) -> None:
    arguments = ["driver", "--properties-file", "/opt/spark/conf/spark.properties", "local:///job.py", "a b"]
    assert entrypoint.command(arguments, {"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.2"}, HOME) == [
        "/spark/bin/spark-submit",
        "--conf",
        "spark.driver.bindAddress=10.0.0.2",
        "--conf",
        "spark.executorEnv.SPARK_DRIVER_POD_IP=10.0.0.2",
        "--deploy-mode",
        "client",
        *arguments[1:],
    ]


def test_an_executor_is_a_jvm(entrypoint: ModuleType) -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dn={number}" for number in (0, 10, 2)}
    environment = {**ASKED, **options, "JAVA_HOME": "/java", "SPARK_CONF_DIR": "/opt/spark/conf"}
    words = entrypoint.command(["executor"], environment, HOME)
    assert words[:6] == ["/java/bin/java", "-Dn=0", "-Dn=2", "-Dn=10", "-Xms768m", "-Xmx768m"]
    assert words[6:9] == ["-cp", "/opt/spark/conf:/spark/jars/*", entrypoint.EXECUTOR]
    named = dict(zip(words[9::2], words[10::2], strict=True))
    assert named == {option: ASKED[name] for option, name in entrypoint.EXECUTOR_OPTIONS.items()}


def test_what_spark_forgot_is_an_error(entrypoint: ModuleType) -> None:
    with pytest.raises(KeyError, match="SPARK_DRIVER_URL"):
        entrypoint.command(["executor"], {"SPARK_EXECUTOR_MEMORY": "1g"}, HOME)


def test_any_other_command_is_run_as_it_is(entrypoint: ModuleType) -> None:
    assert entrypoint.command(["python", "-V"], {}, HOME) == ["python", "-V"]
    assert entrypoint.command(["spark-submit", "--version"], {}, HOME) == ["/spark/bin/spark-submit", "--version"]


def test_kernels_are_copied_once(entrypoint: ModuleType, tmp_path: Path) -> None:
    prebuilt, place = tmp_path / "prebuilt", tmp_path / "tmp" / "kernels"
    entrypoint.provide_kernels(prebuilt, place)
    assert not place.exists()
    prebuilt.mkdir()
    (prebuilt / "scan.nbc").write_bytes(b"code")
    entrypoint.provide_kernels(prebuilt, place)
    (place / "scan.nbc").write_bytes(b"newer")
    entrypoint.provide_kernels(prebuilt, place)
    assert (place / "scan.nbc").read_bytes() == b"newer"
