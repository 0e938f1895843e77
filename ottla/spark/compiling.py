"""How kernels are compiled: by numba, once for a machine. Raises ImportError where numba is missing.

The machine code is kept on disk beside the source or, where that can't be written, in a directory of the user's, so
that a cold worker only loads it.
"""

from __future__ import annotations

import getpass
import importlib
import os
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
        except RuntimeError:  # numba found no place for its cache: a read-only file system
            _config.CACHE_DIR = os.path.join(tempfile.gettempdir(), f"ottla-kernels-{getpass.getuser()}")
            return njit(*signature, cache=True, nogil=True)(function)

    return decorate


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
