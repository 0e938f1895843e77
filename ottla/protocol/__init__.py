"""Kafka's wire protocol: frames, messages, record batches, errors.

This package is the one place that decides how kio, which knows Kafka's message schemas, is loaded. If Hypothesis is
installed, kio imports it and registers a strategy for each of its types. That costs a process 9 MB and a third of its
start, and no test uses those strategies. So kio's types are loaded here, before any module of this package can load
them, while Hypothesis is hidden. Afterwards other importers find Hypothesis as before.
"""

import sys
from importlib import import_module


def _load_kio_without_hypothesis() -> None:
    """Loads kio's types while Hypothesis is hidden. kio imports Hypothesis only once, when its types are loaded."""
    present = sys.modules.get("hypothesis")
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        import_module("kio.static.primitive")
    finally:
        del sys.modules["hypothesis"]
        if present is not None:
            sys.modules["hypothesis"] = present


_load_kio_without_hypothesis()
