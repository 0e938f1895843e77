"""Compiles the kernels, which are the loops over records, with numba. The import of this module fails if numba isn't
installed.

Numba caches the machine code on disk, so that a new worker process loads it instead of compiling. The cache is in
NUMBA_CACHE_DIR, beside the source, or in the user's cache directory. If none of these directories can be written, as in
a container with a read-only file system, the cache is in a directory for temporary files. If that can't be written
either, each process compiles the kernels itself.
"""

from __future__ import annotations

import importlib
import os
import stat
import tempfile
from collections.abc import Callable
from typing import Any

import numba
from numba.extending import intrinsic

njit: Any = numba.njit
_cgutils: Any = importlib.import_module("numba.core.cgutils")
int64: Any = numba.int64
uint64: Any = numba.uint64
types: Any = numba.types
_config: Any = numba.config


def compiled(*signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator that compiles a function for one signature at its definition, or loads its code from the cache."""

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return njit(*signature, cache=True, nogil=True)(function)
        except RuntimeError:  # numba found no directory for its cache that can be written
            place = temporary_place()
            if place is None:
                return njit(*signature, nogil=True)(function)
            _config.CACHE_DIR = place
            return njit(*signature, cache=True, nogil=True)(function)

    return decorate


def temporary_place() -> str | None:
    """A cache directory among the temporary files. Machine code in it is executed, so only this user may write to it.

    None if the directory can't be created or written, belongs to another user, or may be written by other users.
    """
    try:
        place = os.path.join(tempfile.gettempdir(), f"ottla-kernels-{os.getuid()}")
        os.makedirs(place, mode=0o700, exist_ok=True)
        found = os.lstat(place)
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
        with tempfile.TemporaryFile(dir=place):
            return place if ours else None
    except OSError:
        return None


def _copy_bytes(typing: Any, target: Any, at: Any, source: Any, position: Any, size: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, where, origin, first, count = arguments
        to_data = context.make_array(signature.args[0])(context, builder, to).data
        origin_data = context.make_array(signature.args[2])(context, builder, origin).data
        _cgutils.raw_memcpy(builder, builder.gep(to_data, [where]), builder.gep(origin_data, [first]), count, 1)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


# copy_bytes(target, at, source, position, size) copies `size` bytes between byte arrays with one memcpy, without any
# check of bounds. In a loop, numba would check whether each index is negative, and the compiler then can't copy whole
# words.
copy_bytes: Any = intrinsic(_copy_bytes)
