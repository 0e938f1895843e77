"""Makes the SparkSession that the pipelines and the demo run in, locally or under spark-submit."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from . import register
from .java import ensure_java
from .worker_python import worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_session(name: str, **settings: str) -> SparkSession:
    """A session with the data source registered.

    Outside spark-submit it is a quiet local one, on every core. Its time zone is UTC everywhere: what pipelines write
    doesn't depend on where they run. `settings` are Spark's, with `__` for dots. Raises JavaMissing.
    """
    ensure_java()
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    conf = SparkConf().setAppName(name).set("spark.sql.session.timeZone", "UTC")
    # spark-submit's JVM waits for this process, and has the settings: here they are seen only once it is connected.
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    # Workers must run this very Python, which has Ottla, and not whatever python3 is on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable if submitted else worker_python())
    local = {
        "spark.master": "local[*]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "4",
        "spark.python.authenticate.socketTimeout": "60s",  # 15 s by default, which a busy machine's workers may miss
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}",
    }
    if not submitted:
        for key, value in local.items():
            conf.set(key, value)
    for key, value in settings.items():
        conf.set(key.replace("__", "."), value)
    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark
