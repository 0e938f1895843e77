"""The script that starts Spark's workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.spark.worker_python import launcher, worker_python

SHOW = "import json, os, sys; print(json.dumps([os.environ.get('PYTHONPATH'), sys.executable, sys.argv[1:]]))"


def shown(program: Path | str, path: str | None) -> list[object]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = path
    command = [str(program), "-c", SHOW, "a b", "*"]
    return json.loads(subprocess.run(command, env=environment, capture_output=True, check=True, timeout=60).stdout)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("{home}/python/lib/pyspark.zip:{home}/jars/core.jar:/mine:/it's mine", "/mine:/it's mine"),
        ("/mine", "/mine"),
        ("{home}/python/lib/pyspark.zip", None),
        ("{home} of another/x", "{home} of another/x"),
        (None, None),
    ],
)
def test_drops_what_lies_in_spark_and_nothing_else(tmp_path: Path, given: str | None, kept: str | None) -> None:
    home = tmp_path / "site packages" / "pyspark"
    script = launcher(tmp_path / "cache", home, sys.executable)
    wanted = None if kept is None else kept.format(home=home)
    assert shown(script, None if given is None else given.format(home=home)) == [wanted, sys.executable, ["a b", "*"]]


def test_is_made_once(tmp_path: Path) -> None:
    script = launcher(tmp_path, tmp_path / "pyspark", sys.executable)
    made = script.stat()
    assert launcher(tmp_path, tmp_path / "pyspark", sys.executable) == script
    assert script.stat() == made
    assert launcher(tmp_path, tmp_path / "other", sys.executable) != script
    assert [each.stat().st_mode & 0o777 for each in tmp_path.iterdir()] == [0o755, 0o755]


def test_no_place_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("a file, where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert worker_python() == sys.executable
