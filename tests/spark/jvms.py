"""Settings of the JVMs of the Spark tests, all on one machine: a driver, or a `local-cluster` with executors.

The JVMs run too briefly to gain from Java's second compiler. Without it, a session that runs three small queries takes
11 s of CPU instead of 22 s.
"""

from __future__ import annotations

from pathlib import Path

import pyspark

HOME = Path(pyspark.__file__).parent  # the value for SPARK_HOME, from which a local-cluster starts its programs
_ONE_COMPILER = "-XX:TieredStopAtLevel=1"
DRIVER = {"spark.driver.defaultJavaOptions": _ONE_COMPILER}
_MEMORY_MB = 600


def local_cluster(*, executors: int, cores: int) -> dict[str, str]:
    """The settings for a driver with this number of executor processes, each with this number of cores."""
    return {
        **DRIVER,
        "spark.master": f"local-cluster[{executors},{cores},{_MEMORY_MB}]",
        "spark.executor.defaultJavaOptions": _ONE_COMPILER,
        "spark.executor.memory": f"{_MEMORY_MB}m",
        "spark.driver.memory": "512m",
        "spark.python.authenticate.socketTimeout": "120s",
    }


def keywords(settings: dict[str, str]) -> dict[str, str]:
    """Settings as keyword arguments of `spark_session`."""
    return {name.replace(".", "__"): value for name, value in settings.items()}
