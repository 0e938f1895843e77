"""Volumes of a few megabytes, each a file system of its own, for tests that fill them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def fill(path: Path) -> None:
    """Writes to a file until its volume is full."""
    with open(path, "wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(65536))
        except OSError:
            pass


@contextmanager
def small_volume(path: Path, size_bytes: int) -> Iterator[Path]:
    """A file system in memory at `path`. Skips the test if it can't be mounted."""
    path.mkdir(parents=True, exist_ok=True)
    try:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)]
        subprocess.run(mount, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a volume to fill can't be mounted; run as root: {getattr(error, 'stderr', '') or error}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
