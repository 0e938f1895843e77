"""Settings of all tests: on a busy machine no property test fails by its deadline, and a failed test that uses programs
of other projects is run once more.

A run of several folders of tests/ prints each folder that it reaches, and the time since the run began.
"""

import gc
import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# A shell without job control starts its background processes with SIGINT ignored, and every child process inherits
# that. Without this line Ctrl-C would end no process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# `make unit` is short: it asks for a fifth of each property's examples.
settings.register_profile("short", deadline=None, max_examples=20)
settings.register_profile("full", deadline=None, max_examples=100)
settings.load_profile("full")

# In these folders, processes of other projects (JVMs, Spark, etcd, clients with time-outs of their own) share the
# machine with all its other work. `crash`, `simulation` and `fuzz` aren't among them: a test that fails there once
# shows a fault.
SECOND_TRY = ("cli", "conformance", "contract", "spark")

# `make test` runs two lanes of folders beside each other: these folders, and all others. The tests of a lane run in
# order in one process, so that a folder's servers and JVMs start once. Each lane spends half of its time waiting, for
# time-outs and for programs to start, and both lanes take about as long.
FIRST_LANE = {"tests/charts", "tests/cli", "tests/conformance", "tests/spark"}


class Lanes(LoadScopeScheduling):
    """xdist's scheduler for `--dist loadscope`. A scope is one of two groups (lanes) of test folders instead of a
    module: each of the two workers runs one group."""

    def _split_scope(self, nodeid: str) -> str:
        return "first" if _folder_of(nodeid) in FIRST_LANE else "second"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    return Lanes(config, log) if config.getoption("dist") == "loadscope" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Has failed tests in the folders SECOND_TRY run once more. pytest's closing line counts the reruns."""
    tests = Path(__file__).parent
    for item in items:
        if item.path.relative_to(tests).parts[0] in SECOND_TRY:
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_collection_finish() -> None:
    """Keeps all objects of the tests and their imports out of garbage collection, because they stay until the end.

    Without this, a full collection goes through half a million objects, and takes a third of a second.
    """
    gc.collect()
    gc.freeze()


def _folder_of(nodeid: str) -> str:
    return "/".join(nodeid.split("/")[:2])


class Progress:
    """Prints a line before the first test of each folder of tests/, with the time since the run began.

    A run of one folder prints none.
    """

    def __init__(self, reporter: pytest.TerminalReporter, *, several: bool) -> None:
        self._reporter = reporter
        self._began_s = time.monotonic()
        self._several = several
        self._begun: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._several = self._several or len({_folder_of(item.nodeid) for item in session.items}) > 1

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        folder = _folder_of(nodeid)
        if self._several and folder not in self._begun:
            self._begun.add(folder)
            minutes, seconds = divmod(int(time.monotonic() - self._began_s), 60)
            self._reporter.ensure_newline()
            self._reporter.write_line(f"{folder}, after {minutes} min {seconds:02} s")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Registers Progress in the process that prints: the only one, or pytest-xdist's controller of both workers."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    dist = config.getoption("dist", "no")
    if reporter is not None and dist in ("no", "loadscope"):
        config.pluginmanager.register(Progress(reporter, several=dist == "loadscope"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says at the end of the output if a test of tests/unit failed: `make test` ran those tests before, in a run of
    their own, and their summary stands far above."""
    if os.environ.get("OTTLA_UNITS", "0") != "0":
        terminalreporter.write_line("tests/unit, which ran first, failed: see its summary above", red=True)
