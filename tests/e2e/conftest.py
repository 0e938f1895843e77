"""Fixtures for scenarios on a real Kubernetes. Only `make e2e` runs them: other runs of pytest don't collect them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.alone import alone
from tests.e2e.installed import Operator
from tests.e2e.target import CommandFailed, NodeMissing, Target, TargetMissing, target

HERE = Path(__file__).parent
SCENARIO_S = 1200
NO_NODE = 77  # the exit code that `.ci/e2e` knows


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignores the scenarios unless the command line names this folder or a file in it."""
    asked = any(Path(word.partition("::")[0]).resolve().is_relative_to(HERE) for word in config.args)
    return None if asked or collection_path == HERE else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sets the scenarios' time-out, which doesn't include the fixtures: the first scenario has to build images."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SCENARIO_S, func_only=True))


@pytest.fixture(scope="session")
def only_run() -> Iterator[None]:
    """Waits until this run has the machine's Kubernetes for itself."""
    with alone():
        yield


@pytest.fixture(scope="session")
def kubernetes(only_run: None) -> Iterator[Target]:
    """The Kubernetes cluster, with Ottla's images except Spark's. If there is no Kubernetes cluster, pytest exits.

    Afterwards the operator, Ottla's CRDs and a node that was started for the run are removed.
    """
    with _or_exit():
        found = target()
    try:
        with _or_exit():
            found.provide("broker", "etcd", "clients")
        yield found
    finally:
        if not os.environ.get("OTTLA_E2E_KEEP"):
            Operator(found).remove()
            found.stop()


@pytest.fixture(scope="session")
def spark_image(kubernetes: Target) -> None:
    """Builds Spark's image and loads it into the nodes, only for scenarios with Spark: it is the largest image."""
    with _or_exit():
        kubernetes.provide("spark")


@contextmanager
def _or_exit() -> Iterator[None]:
    try:
        yield
    except NodeMissing as error:
        pytest.exit(str(error), returncode=NO_NODE)
    except (TargetMissing, CommandFailed) as error:
        pytest.exit(str(error), returncode=pytest.ExitCode.TESTS_FAILED)


@pytest.fixture
def operator(kubernetes: Target) -> Operator:
    """The operator, installed and ready when a scenario begins."""
    found = Operator(kubernetes)
    if found.endings():  # the previous scenario has reported these ends; they must not fail this scenario
        found.kill()
    installed = Operator(kubernetes)
    installed.install()
    return installed
