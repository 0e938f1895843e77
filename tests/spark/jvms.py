"""What the JVMs of these tests are started with, on one machine: a driver, or a `local-cluster` with executors.

They live for too short a time to get back what the second of Java's compilers costs: without it a session that runs
three small queries takes 11 s of CPU in place of 22.
"""

from __future__ import annotations

from pathlib import Path

import pyspark

HOME = Path(pyspark.__file__).parent  # SPARK_HOME, without which a local-cluster doesn't find what to start
_ONE_COMPILER = "-XX:TieredStopAtLevel=1"
DRIVER = {"spark.driver.defaultJavaOptions": _ONE_COMPILER}
_MEMORY_MB = 600


def local_cluster(*, executors: int, cores: int) -> dict[str, str]:
    """The settings for so many executors of so many cores each, which are processes."""
    return {
        **DRIVER,
        "spark.master": f"local-cluster[{executors},{cores},{_MEMORY_MB}]",
        "spark.executor.defaultJavaOptions": _ONE_COMPILER,
        "spark.executor.memory": f"{_MEMORY_MB}m",
        "spark.driver.memory": "512m",
        "spark.python.authenticate.socketTimeout": "120s",
    }


def keywords(settings: dict[str, str]) -> dict[str, str]:
    """Settings as `spark_session` takes them."""
    return {name.replace(".", "__"): value for name, value in settings.items()}
