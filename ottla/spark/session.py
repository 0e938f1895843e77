"""Creates the SparkSession of the pipelines and the demo, locally or under spark-submit."""

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
    """A session that has the data source `ottla`. `name` is the application's name.

    Under spark-submit, the session has the master and the settings of spark-submit. Otherwise it is a local session on
    all cores, without the web UI and the progress bar. In both cases the session's time zone is UTC, so the output of a
    pipeline doesn't depend on the machine. `settings` are further settings of Spark; their names have `__` for each
    dot. Raises JavaMissing.
    """
    ensure_java()
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    conf = SparkConf().setAppName(name).set("spark.sql.session.timeZone", "UTC")
    # Under spark-submit, a JVM that has the settings starts this process, and sets this variable. This process can't
    # read the settings before the session exists.
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    # Workers must run the Python installation that has Ottla. By default Spark starts the python3 on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable if submitted else worker_python())
    local = {
        "spark.master": "local[*]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "4",
        "spark.python.authenticate.socketTimeout": "60s",  # by default 15 s, too few on a busy machine
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
