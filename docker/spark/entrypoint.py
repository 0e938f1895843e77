"""The Spark image's entrypoint: `driver …` and `executor` as Spark's Kubernetes backend starts them, or any command.

PySpark's package has that backend but no entrypoint. The backend describes a driver by arguments, and an executor by
environment variables, as for the entrypoint of Spark's own image. Source: Spark's `BasicExecutorFeatureStep` and
`DriverCommandFeatureStep`.
"""

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PREBUILT_KERNELS = Path("/opt/ottla-kernels")
EXECUTOR = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
EXECUTOR_OPTIONS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}


def command(arguments: Sequence[str], environment: Mapping[str, str], home: Path) -> list[str]:
    """The command line to execute. `home` is Spark's home directory. Raises KeyError if Spark left a variable unset."""
    match arguments:
        case ["driver", *rest]:
            address = environment["SPARK_DRIVER_BIND_ADDRESS"]
            known = [f"spark.driver.bindAddress={address}", f"spark.executorEnv.SPARK_DRIVER_POD_IP={address}"]
            options = [word for setting in known for word in ("--conf", setting)]
            return [str(home / "bin" / "spark-submit"), *options, "--deploy-mode", "client", *rest]
        case ["executor", *_]:
            return executor(environment, home)
        case ["spark-submit", *rest]:
            return [str(home / "bin" / "spark-submit"), *rest]
    return list(arguments)


def executor(environment: Mapping[str, str], home: Path) -> list[str]:
    """The command line that starts an executor's JVM. Raises KeyError if Spark left a variable unset."""
    java = f"{environment['JAVA_HOME']}/bin/java" if "JAVA_HOME" in environment else "java"
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    named = [word for option, name in EXECUTOR_OPTIONS.items() for word in (option, environment[name])]
    heap = [f"-Xms{memory}", f"-Xmx{memory}"]
    return [java, *java_options(environment), *heap, "-cp", class_path(environment, home), EXECUTOR, *named]


def java_options(environment: Mapping[str, str]) -> list[str]:
    """The values of SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, …, in the order of their numbers (…_2 before …_10)."""
    prefix = "SPARK_JAVA_OPT_"
    numbers = sorted(int(name.removeprefix(prefix)) for name in environment if name.startswith(prefix))
    return [environment[f"{prefix}{number}"] for number in numbers]


def class_path(environment: Mapping[str, str], home: Path) -> str:
    """The class path. Spark's configuration directory comes first, so Java uses a log4j2.properties from there."""
    asked = [environment.get(name, "") for name in ("SPARK_CONF_DIR", "SPARK_EXTRA_CLASSPATH", "SPARK_CLASSPATH")]
    return ":".join([*filter(None, asked), f"{home}/jars/*", *filter(None, [environment.get("SPARK_DIST_CLASSPATH")])])


def provide_kernels(prebuilt: Path, place: Path) -> None:
    """Copies the compiled kernels to `place`, where numba may write: numba doesn't use a read-only cache."""
    if prebuilt.is_dir() and not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(prebuilt, place)


def main() -> None:
    """Replaces this process by the command that the arguments ask for."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    home = Path(found.origin).parent
    os.environ["SPARK_HOME"] = str(home)
    if "NUMBA_CACHE_DIR" in os.environ:
        provide_kernels(PREBUILT_KERNELS, Path(os.environ["NUMBA_CACHE_DIR"]))
    words = command(sys.argv[1:] or ["spark-submit", "--version"], os.environ, home)
    os.execvp(words[0], words)


if __name__ == "__main__":
    main()
