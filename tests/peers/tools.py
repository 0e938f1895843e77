"""Finds programs that tests need and that aren't on PyPI, or says in one line what is missing and how to install it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.protocol import record_walk

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("OTTLA_TEST_CACHE", ROOT / ".cache"))

_HOW = {
    "cc": "a C compiler (apt-get install gcc libc6-dev python3-dev)",
    "java": "Java 17 or newer (apt-get install openjdk-17-jre-headless)",
    "javac": "a Java compiler (apt-get install openjdk-17-jdk-headless)",
    "mvn": "Maven (apt-get install maven)",
    "c++": "a C++ compiler (apt-get install g++)",
    "make": "make (apt-get install make)",
    "cmake": "CMake (apt-get install cmake)",
    "cargo": "Cargo (apt-get install cargo)",
    "go": "Go 1.26 or newer (go.dev/dl)",
    "openssl.h": "OpenSSL's headers (apt-get install libssl-dev)",
}


def need(*programs: str) -> None:
    """Skips the test if one of `programs`, or of the headers (`.h`) among them, is missing; under CI the test fails
    instead."""
    missing = [_HOW[program] for program in programs if not _is_there(program)]
    if not missing:
        return
    message = f"needs {' and '.join(missing)}"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def _is_there(program: str) -> bool:
    if program.endswith(".h"):
        return any(Path(folder, "openssl/ssl.h").exists() for folder in ("/usr/include", "/usr/local/include"))
    return shutil.which(program) is not None


def need_native_walk() -> None:
    """Skips a test that measures a broker if the native walk over records isn't built; under CI the test fails."""
    need("cc")
    if record_walk.NATIVE:
        return
    message = "needs the native walk of records: touch hatch_build.py && make setup"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def go_program(source: Path, package: str = ".", name: str = "", *, tests: bool = False) -> Path:
    """The program of a package of the Go module in `source`, rebuilt if a file there is newer. Skips the test if Go is
    missing. With `tests` it is the program that runs the package's tests; their build tag `functional` is set."""
    need("go")
    name = name or source.name
    with locked(f"go/{source.name}") as folder:
        binary = folder / name
        sources = (path for path in source.rglob("*") if path.is_file())
        if not binary.exists() or binary.stat().st_mtime < max(path.stat().st_mtime for path in sources):
            command = [
                "go",
                *(["test", "-c", "-tags", "functional"] if tests else ["build"]),
                "-o",
                str(binary),
                package,
            ]
            done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=1800, check=False)
            assert done.returncode == 0, done.stderr
    return binary


@contextmanager
def locked(name: str) -> Iterator[Path]:
    """A folder of the cache, locked by this process, so that two test runs never fill it at the same time."""
    folder = CACHE / name
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield folder
