"""Builds the C library that walks through records (`ottla/protocol/_record_walk.c`), if there is a C compiler.

Hatchling calls this build hook. Ottla works without the library: if there is no compiler, or Python's headers are
missing, the build warns in one line, the wheel is one for any platform, and the same code in Python is used instead
(`ottla --version` and the log at a broker's start say which). An editable installation gets the library beside its
source. The environment variable OTTLA_NATIVE may be `require`, which fails the build if the library can't be built, or
`no`, which leaves the library out.

The compiler is called directly, and not by setuptools, because one file needs no build system, and because the compiler
that a Python was built with (which setuptools would call) needn't be the one that this machine has.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "ottla/protocol/_record_walk.c"
LIBRARY = "ottla/protocol/_record_walk.abi3.so"
FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-fPIC", "-shared")
STABLE_ABI = "cp311-abi3"  # as the source says: Py_LIMITED_API
WISH = "OTTLA_NATIVE"


class NativeWalk(BuildHookInterface):  # type: ignore[misc]
    """Adds the library to a wheel, or puts it into the source tree that an editable one points to."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles the library; hatchling calls this before it gathers the wheel's files."""
        wish = os.environ.get(WISH, "")
        if wish not in ("", "require", "no"):
            raise SystemExit(f'{WISH}={wish}: it takes "require" or "no"')
        in_tree = Path(self.root, LIBRARY)
        if version == "editable":
            in_tree.unlink(missing_ok=True)  # one of an older source would be worse than none
        if wish == "no":
            return
        self._scratch = tempfile.TemporaryDirectory(prefix="ottla-native-")
        library = Path(self._scratch.name, in_tree.name)
        try:
            compile_library(Path(self.root, SOURCE), library)
        except CannotCompile as error:
            if wish == "require":
                raise SystemExit(f"{SOURCE} can't be built, and {WISH}=require: {error}") from error
            self.app.display_warning(f"{SOURCE} can't be built, its twin in Python will serve: {error}".splitlines()[0])
            return
        if version == "editable":
            shutil.move(library, in_tree)
        else:
            build_data["force_include"][str(library)] = LIBRARY
        build_data["pure_python"] = False
        build_data["tag"] = f"{STABLE_ABI}-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Deletes the temporary files; hatchling calls this when the wheel is written."""
        if hasattr(self, "_scratch"):
            self._scratch.cleanup()


class CannotCompile(Exception):
    """There is no C compiler, or the compiler failed; the first line of the message says why."""


def compile_library(source: Path, library: Path) -> None:
    """Compiles `source`. Raises CannotCompile."""
    candidates = (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang")
    compiler = next((words for name in candidates if name and shutil.which((words := shlex.split(name))[0])), None)
    if compiler is None:
        raise CannotCompile("no C compiler was found (CC, cc, gcc or clang)")
    flags = [*FLAGS, *shlex.split(os.environ.get("CFLAGS", ""))]
    command = [*compiler, *flags, f"-I{sysconfig.get_path('include')}", str(source), "-o", str(library)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        errors = [line for line in result.stderr.splitlines() if "error" in line] or [result.stderr]
        raise CannotCompile(f"{shlex.join(command)}: {errors[0].strip()}\n{result.stderr}")
