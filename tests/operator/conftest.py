"""What tests on a real API server share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.peers.kube_apiserver import KubeApiServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApiServer]:
    """An API server with an etcd of its own, where nothing is defined yet."""
    running = KubeApiServer(tmp_path_factory.mktemp("kubernetes"))
    yield running
    running.stop()
