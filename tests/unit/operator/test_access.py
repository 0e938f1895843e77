"""An operator without rights says so in its log, and isn't ready. Before the fix, it looked healthy."""

from __future__ import annotations

import asyncio

import pytest

from ottla.operator.access import READ, Access
from ottla.operator.kube import KubeError


class Kubernetes:
    """An API server that refuses some kinds."""

    def __init__(self) -> None:
        self.refused: set[tuple[str, str]] = set()
        self.asked: list[tuple[str, str]] = []

    async def knows(self, kind: str, namespace: str = "") -> bool:
        self.asked.append((kind, namespace))
        if (kind, namespace) in self.refused:
            raise KubeError(403, f"looking for {kind}", f"{kind} is forbidden in {namespace}")
        return kind != "Topic"


def test_all_that_is_watched_is_read_in_each_namespace() -> None:
    kube = Kubernetes()
    access = Access(kube, {"b", "a"})
    assert access.trouble
    asyncio.run(access.look())
    assert access.trouble == ""
    assert kube.asked == [(kind, namespace) for namespace in ("a", "b") for kind in READ]


def test_what_is_refused_is_told_once_and_as_long_as_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ottla.operator.access")
    kube = Kubernetes()
    kube.refused.add(("Pod", ""))
    access = Access(kube)
    for _ in range(3):
        asyncio.run(access.look())
        assert access.trouble == "looking for Pod: Pod is forbidden in "
    assert len(caplog.records) == 1
    kube.refused.clear()
    asyncio.run(access.look())
    assert access.trouble == ""
    assert caplog.records[-1].levelname == "INFO"
