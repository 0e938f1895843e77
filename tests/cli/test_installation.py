"""Ottla can be installed with and without a C compiler. With a compiler, the installation has the native walk of
records."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path
from typing import cast

import pytest

from bench.__main__ import main as benchmarks
from ottla.broker.metrics.catalogue import METRICS, Source
from ottla.protocol import record_walk
from tests.peers.tools import ROOT, locked, need, need_native_walk

LIBRARY = "ottla/protocol/_record_walk.abi3.so"
REQUIREMENTS = ("hatchling>=1.25",)


@pytest.fixture(scope="module")
def builder() -> Path:
    """A Python with the packages that pip would install to build a wheel."""
    with locked("hatchling") as folder:
        python = folder / "bin" / "python"
        if not (folder / "done").exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, *REQUIREMENTS], check=True)
            (folder / "done").touch()
    return python


def build(
    builder: Path, out: Path, *, compiler: bool = True, wish: str = "", target: str = "wheel", flags: str = ""
) -> str:
    """Builds into `out` and returns the builder's output. Raises CalledProcessError if the build fails."""
    environment = {name: value for name, value in os.environ.items() if name not in ("CC", "CFLAGS", "OTTLA_NATIVE")}
    if not compiler:
        environment["PATH"] = str(builder.parent)  # the PATH has no programs but Python's own
    environment |= {name: value for name, value in (("OTTLA_NATIVE", wish), ("CFLAGS", flags)) if value}
    words = [str(builder), "-m", "hatchling", "build", "--target", target, "--directory", str(out)]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, words, done.stdout, done.stderr)
    return done.stdout + done.stderr


def walk_in_use(wheel: Path, folder: Path) -> str:
    """Whether an installation of `wheel` walks over records by native code: "True" or "False"."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    # Without `site`: otherwise the namespace would also have the portions of an editable installation.
    paths = [str(folder), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    code = f"import sys; sys.path[:0] = {paths}; import ottla.protocol.record_walk as it; print(it.NATIVE, it.__file__)"
    said = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    native, file = said.stdout.split()
    assert file.startswith(str(folder))
    return native


def test_a_wheel_built_with_a_compiler_carries_the_native_walk(builder: Path, tmp_path: Path) -> None:
    need("cc")
    build(builder, tmp_path, wish="require")
    (wheel,) = tmp_path.glob("*.whl")
    assert re.fullmatch(r"ottla-.*-cp311-abi3-linux_\w+\.whl", wheel.name)
    files = zipfile.ZipFile(wheel).namelist()
    assert LIBRARY in files
    assert not [name for name in files if name.endswith(".c")]
    assert walk_in_use(wheel, tmp_path / "unpacked") == "True"


def test_a_wheel_built_without_a_compiler_has_the_twin_and_says_so(builder: Path, tmp_path: Path) -> None:
    said = build(builder, tmp_path, compiler=False)
    assert [line for line in said.splitlines() if "its twin in Python will serve: no C compiler was found" in line]
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    assert walk_in_use(wheel, tmp_path / "unpacked") == "False"


def test_a_compiler_that_fails_costs_a_line_and_not_the_wheel(builder: Path, tmp_path: Path) -> None:
    need("cc")
    said = build(builder, tmp_path, flags="-include no-such-header.h")
    (line,) = [line for line in said.splitlines() if "its twin in Python will serve" in line]
    assert "no-such-header.h: No such file" in line
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")


def test_the_native_walk_can_be_left_out(builder: Path, tmp_path: Path) -> None:
    build(builder, tmp_path, wish="no")
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with pytest.raises(subprocess.CalledProcessError, match="returned non-zero") as caught:
        build(builder, tmp_path, wish="perhaps")
    assert 'OTTLA_NATIVE=perhaps: it takes "require" or "no"' in caught.value.stderr


def test_who_insists_on_the_native_walk_gets_no_wheel_without_a_compiler(builder: Path, tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        build(builder, tmp_path, compiler=False, wish="require")
    assert "can't be built, and OTTLA_NATIVE=require: no C compiler was found" in caught.value.stderr
    assert not list(tmp_path.glob("*.whl"))


def test_a_source_distribution_carries_what_builds_the_native_walk(builder: Path, tmp_path: Path) -> None:
    build(builder, tmp_path, compiler=False, target="sdist")
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert {"hatch_build.py", "ottla/protocol/_record_walk.c", "pyproject.toml"} <= names
    assert not [name for name in names if name.endswith(".so")]


def test_the_native_walk_is_in_use_under_ci() -> None:
    """Without the native walk of records, CI fails: otherwise it would test only the walk in Python. Elsewhere the test
    is skipped if the native walk isn't built."""
    need_native_walk()


WITHOUT = "import sys; sys.modules['ottla.protocol._record_walk'] = None; "
"""Code before a program that makes its process behave as in an installation without the native walk."""


def test_the_version_says_which_walk_is_in_use() -> None:
    code = "from ottla.cli.main import main; sys.argv = ['ottla', '--version']; main()"
    said = subprocess.run([sys.executable, "-c", WITHOUT + code], capture_output=True, text=True, check=False)
    assert "walk of records in Python" in said.stdout
    said = subprocess.run([sys.executable, "-c", "import sys; " + code], capture_output=True, text=True, check=False)
    assert ("native walk of records" in said.stdout) == record_walk.NATIVE


def test_a_broker_without_the_native_walk_says_so_in_its_log(tmp_path: Path) -> None:
    settings = ["node.id=0", f"log.dirs={tmp_path}", "listeners=PLAINTEXT://127.0.0.1:0"]
    arguments = [word for setting in settings for word in ("--set", setting)]
    code = f"from ottla.cli.server import main; sys.exit(main({[*arguments, '--until-stdin-ends']}))"
    broker = subprocess.Popen(
        [sys.executable, "-c", WITHOUT + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert broker.stdout is not None
    ready = broker.stdout.readline()
    _, log = broker.communicate(timeout=60)  # closes the broker's standard input, which ends the broker
    assert "ready" in ready, log
    assert "the native walk of records isn't there" in log
    assert broker.returncode == 0


@pytest.mark.parametrize("native", [True, False])
def test_the_metric_says_which_walk_is_in_use(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_walk, "NATIVE", native)
    (metric,) = [metric for metric in METRICS if metric.name == "ottla_native_record_walk"]
    assert list(metric.collect(cast(Source, None))) == [((), int(native))]


def test_benchmarks_refuse_the_twin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(record_walk, "NATIVE", False)
    assert benchmarks() == 2
    assert "the native walk of records isn't there" in capsys.readouterr().err


def test_make_setup_says_that_it_takes_minutes_before_it_is_silent(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\nif [ "$2" = venv ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; else echo "ran $*"; fi\n'
    )
    python.chmod(0o755)
    words = ["make", "--silent", "-C", str(ROOT), "setup", f"VENV={tmp_path / 'venv'}", f"PYTHON={python}"]
    said = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
    first, second, *_ = (line for line in said.splitlines() if not line.startswith("make"))
    assert re.fullmatch(r"Installing \d+ packages into \S+: the first time this takes minutes\.", first)
    assert second.startswith("ran -m pip install")
