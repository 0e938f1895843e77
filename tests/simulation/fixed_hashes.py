"""Runs programs with fixed hashes of strings, so that a seed always gives the same run: PYTHONHASHSEED has to be set
before Python starts.
"""

from __future__ import annotations

import os
import subprocess
import sys


def with_fixed_hashes(module: str) -> None:
    """Starts this program anew, unless PYTHONHASHSEED has the fixed value already."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])


def run(module: str, *arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Runs a module with fixed hashes. Returns its output and its exit code."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        check=False,
    )
