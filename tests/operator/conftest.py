"""Fixtures of the tests on a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
import yaml
from kubernetes.aio.config import kube_config

from ottla.operator.app import KINDS
from ottla.operator.found import OWNED, SEEN
from ottla.operator.kube import Kube
from tests.peers.kube_apiserver import KubeApiServer
from tests.peers.tools import ROOT

CRDS = ROOT / "operator/ottla/operator/crds"
Scene = Callable[[Kube], Awaitable[None]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApiServer]:
    """An API server with an etcd of its own; the CRDs aren't installed yet."""
    running = KubeApiServer(tmp_path_factory.mktemp("kubernetes"))
    yield running
    running.stop()


@pytest.fixture
def play(server: KubeApiServer, monkeypatch: pytest.MonkeyPatch) -> Callable[[Scene], None]:
    """A function that runs a test's coroutine on an API server that knows the CRDs, with an empty namespace `shop`."""
    # kopf reads this variable; the client read it when it was imported
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(server.kubeconfig))

    async def whole(scene: Scene) -> None:
        kube = await Kube.connect()
        try:
            await defined(kube)
            await kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
            await emptied(kube)
            await scene(kube)
        finally:
            await kube.close()

    return lambda scene: asyncio.run(asyncio.wait_for(whole(scene), 300))


async def emptied(kube: Kube) -> None:
    """Deletes all objects that earlier tests have left, also tests that failed."""
    for kind in (*KINDS, "Secret", *OWNED, *SEEN):
        for found in await kube.list(kind, "shop"):
            await kube.delete(kind, "shop", found["metadata"]["name"])


async def defined(kube: Kube) -> None:
    """Installs the CRDs, and returns when the API server knows their kinds."""
    for plural in ("clusters", "topics", "users"):
        await kube.apply(yaml.safe_load((CRDS / f"{plural}.yaml").read_text()))
    for _ in range(100):
        if all([await kube.knows(kind, "shop") for kind in KINDS]):
            break
        await asyncio.sleep(0.1)
