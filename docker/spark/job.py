"""Starts a pipeline of `ottla.spark.jobs` by its name, for spark-submit, which takes a file and no module.

spark-submit … local:///opt/spark/job.py sink --topic flights --path /data/flights …
"""

import runpy
import sys

if len(sys.argv) < 2 or not sys.argv[1].isidentifier():
    raise SystemExit("usage: job.py PIPELINE [its options], with a pipeline such as sink or window_counts")
name = sys.argv.pop(1)
runpy.run_module(f"ottla.spark.jobs.{name}", run_name="__main__", alter_sys=True)
