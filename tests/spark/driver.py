"""A driver to be killed: `python -m tests.spark.driver BOOTSTRAP TOPIC FOLDER` writes a topic to Parquet."""

from __future__ import annotations

import sys

from ottla.spark.jobs.sink import sink
from ottla.spark.session import spark_session

LIMIT = 400


def main() -> None:
    bootstrap, topic, folder = sys.argv[1:]
    spark = spark_session("driver", spark__master="local[2]", spark__driver__memory="512m")
    sink(spark, bootstrap, topic, f"{folder}/rows", f"{folder}/state", limit=LIMIT)


if __name__ == "__main__":
    main()
