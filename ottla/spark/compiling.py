"""How kernels are compiled: by numba, once for a machine. Raises ImportError where numba is missing.

The machine code is kept on disk, so that a cold worker only loads it: in NUMBA_CACHE_DIR, beside the source, or in the
user's cache. Where none of them can be written (a container's read-only file system), a directory for temporary files
has to do, and where not even that is there, each process compiles anew.
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
    """A decorator that compiles a function for one signature when it is defined, or loads what was compiled before."""

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return njit(*signature, cache=True, nogil=True)(function)
        except RuntimeError:  # numba found no place for its cache
            place = temporary_place()
            if place is None:
                return njit(*signature, nogil=True)(function)
            _config.CACHE_DIR = place
            return njit(*signature, cache=True, nogil=True)(function)

    return decorate


def temporary_place() -> str | None:
    """A directory that only this user can write: what is loaded from it is executed."""
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


# copy_bytes(target, at, source, position, size) copies between byte arrays as one memcpy; nothing is checked. A loop
# would look at each index for being negative, which keeps the compiler from copying whole words.
copy_bytes: Any = intrinsic(_copy_bytes)
