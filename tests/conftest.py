"""What holds for all tests: a busy machine doesn't make a property test fail, nor one of other people's programs."""

import signal
from pathlib import Path

import pytest
from hypothesis import settings

# A shell without job control begins what it puts into the background with SIGINT ignored, and each process hands that
# on to its own: then nothing that a test starts would end by Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("ottla", deadline=None)
settings.load_profile("ottla")

# Here processes that aren't ours (JVMs, Spark, etcd, clients with time-outs of their own) share the machine with
# whatever else it does. Not `crash`, `simulation` and `fuzz`: what goes wrong there once is a fault.
SECOND_TRY = ("cli", "conformance", "contract", "spark")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A second try for tests whose programs have time-outs; the closing line counts the reruns."""
    tests = Path(__file__).parent
    for item in items:
        if item.path.relative_to(tests).parts[0] in SECOND_TRY:
            item.add_marker(pytest.mark.flaky(reruns=1))
