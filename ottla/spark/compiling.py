"""How kernels are compiled: by numba, once for a machine. Raises ImportError where numba is missing.

The machine code is kept on disk beside the source or, where that can't be written, in a directory of the user's, so
that a cold worker only loads it.
"""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Callable
from typing import Any

import numba

njit: Any = numba.njit
int64: Any = numba.int64
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
