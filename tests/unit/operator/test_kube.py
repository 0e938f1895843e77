"""The requests that the operator's client sends to Kubernetes: paths, applies, pages of lists, errors; and no request
if nothing differs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio import client

from ottla.operator.kube import Kube, KubeError

SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "k", "namespace": "n"},
    "spec": {"ports": [{"port": 1}]},
}


class Api:
    """An API server that notes each request, and returns the prepared answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str], str, Any]] = []
        self.answers: list[tuple[int, dict[str, Any]]] = []

    async def handle(self, request: web.Request) -> web.Response:
        text = await request.text()
        body = json.loads(text) if text else None
        content_type = request.headers.get("Content-Type", "")
        self.asked.append((request.method, request.path, dict(request.query), content_type, body))
        status, answer = self.answers.pop(0) if self.answers else (200, body or {})
        return web.json_response(answer, status=status)


def _with(act: Callable[[Kube, Api], Awaitable[None]]) -> Api:
    api = Api()

    async def run() -> None:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", api.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        kube = Kube(client.ApiClient(client.Configuration(host=f"http://127.0.0.1:{port}")))
        try:
            await act(kube, api)
        finally:
            await kube.close()
            await runner.cleanup()

    asyncio.run(run())
    return api


def test_what_is_applied_is_sent_once() -> None:
    async def act(kube: Kube, api: Api) -> None:
        served = {**SERVICE, "metadata": {**SERVICE["metadata"], "resourceVersion": "5", "uid": "u"}}  # type: ignore[dict-item]
        api.answers = [(201, served)]
        done = await kube.apply(SERVICE)
        touched_status = {**done, "status": {"x": 1}, "metadata": {**done["metadata"], "resourceVersion": "6"}}
        assert await kube.apply(SERVICE, touched_status) == touched_status
        assert len(api.asked) == 1
        drifted = {**done, "spec": {"ports": []}}
        await kube.apply(SERVICE, drifted)
        assert len(api.asked) == 2
        await kube.apply({**SERVICE, "spec": {"ports": [{"port": 2}]}}, done)
        assert kube.writes == 3

    asked = _with(act).asked[0]
    assert asked[:3] == (
        "PATCH", "/api/v1/namespaces/n/services/k", {"fieldManager": "ottla-operator", "force": "true"},
    )  # fmt: skip
    assert asked[3] == "application/apply-patch+yaml"
    assert asked[4] == SERVICE


def test_the_lease_is_no_write_that_counts() -> None:
    async def act(kube: Kube, api: Api) -> None:
        await kube.replace({"kind": "Lease", "metadata": {"name": "l", "namespace": "n"}})
        assert kube.writes == 0
        await kube.replace(SERVICE)
        assert kube.writes == 1

    assert [method for method, *_ in _with(act).asked] == ["PUT", "PUT"]


def test_lists_come_in_pages() -> None:
    async def act(kube: Kube, api: Api) -> None:
        api.answers = [
            (200, {"metadata": {"continue": "more"}, "items": [{"a": 1}]}),
            (200, {"metadata": {}, "items": [{"a": 2}]}),
        ]
        assert await kube.list("Cluster", "n", "a=b,c=d") == [{"a": 1}, {"a": 2}]

    first, second = _with(act).asked
    assert first[1] == "/apis/ottla.dev/v1alpha1/namespaces/n/clusters"
    assert first[2]["labelSelector"] == "a=b,c=d"
    assert second[2]["continue"] == "more"


def test_a_kind_may_not_be_defined() -> None:
    async def act(kube: Kube, api: Api) -> None:
        api.answers = [(200, {"items": []}), (404, {"message": "page not found"}), (403, {"message": "forbidden"})]
        assert await kube.knows("Topic", "n")
        assert not await kube.knows("Topic", "n")
        with pytest.raises(KubeError, match="forbidden"):
            await kube.knows("Topic", "n")

    assert _with(act).asked[0][1:3] == ("/apis/ottla.dev/v1alpha1/namespaces/n/topics", {"limit": "1"})


def test_what_is_not_there_is_none_and_everything_else_an_error() -> None:
    async def act(kube: Kube, api: Api) -> None:
        api.answers = [
            (404, {"message": "not found"}),
            (422, {"message": "spec is wrong"}),
            (404, {"message": "gone"}),
            (409, {"message": "another uid"}),
        ]
        assert await kube.get("Node", "", "x") is None
        with pytest.raises(KubeError, match="applying Service k: spec is wrong") as error:
            await kube.apply(SERVICE)
        assert error.value.status == 422
        assert not await kube.delete("Pod", "n", "p", uid="u")
        assert not await kube.delete("Pod", "n", "p", uid="u")

    asked = _with(act).asked
    assert asked[0][1] == "/api/v1/nodes/x"
    assert asked[3][4] == {"propagationPolicy": "Background", "preconditions": {"uid": "u"}}


def test_a_status_is_written_for_the_version_that_was_read() -> None:
    resource = {
        "kind": "Cluster",
        "metadata": {"name": "k", "namespace": "n", "resourceVersion": "7"},
        "status": {"a": 1, "b": 2},
    }

    async def act(kube: Kube, api: Api) -> None:
        await kube.write_status(resource, {"a": 3})

    ((method, path, _, content_type, body),) = _with(act).asked
    assert (method, path) == ("PATCH", "/apis/ottla.dev/v1alpha1/namespaces/n/clusters/k/status")
    assert content_type == "application/merge-patch+json"
    assert body == {"metadata": {"resourceVersion": "7"}, "status": {"a": 3, "b": None}}


def test_what_a_status_does_not_say_any_more_is_taken_out_at_every_depth() -> None:
    """One Cluster at a time has the turn to restart its pods for a new release of the operator, as a mapping in its
    status says. Before the fix, a turn that had ended stayed in the status, and all other Clusters waited for ever."""
    resource = {
        "kind": "Cluster",
        "metadata": {"name": "k", "namespace": "n", "resourceVersion": "7"},
        "status": {"operator": {"release": "1", "turn": True}, "same": {"a": 1}},
    }

    async def act(kube: Kube, api: Api) -> None:
        await kube.write_status(resource, {"operator": {"release": "2"}, "same": {"a": 1}})

    ((*_, body),) = _with(act).asked
    assert body["status"] == {"operator": {"release": "2", "turn": None}}


def test_an_event_that_is_refused_is_only_missed() -> None:
    about = {
        "apiVersion": "ottla.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": "k", "namespace": "n", "uid": "u"},
    }

    async def act(kube: Kube, api: Api) -> None:
        api.answers = [(403, {"message": "no"})]
        await kube.event(about, "Reason", "a sentence", datetime(2026, 5, 1, tzinfo=UTC), warning=True)

    ((method, path, _, _, body),) = _with(act).asked
    assert (method, path, body["type"]) == ("POST", "/api/v1/namespaces/n/events", "Warning")


def test_an_api_server_that_is_away_is_tried_again_later() -> None:
    async def act(kube: Kube, api: Api) -> None:
        lost = Kube(client.ApiClient(client.Configuration(host="http://127.0.0.1:1")))
        with pytest.raises(KubeError, match="can't be reached"):
            await lost.get("Pod", "n", "p")
        await lost.close()

    _with(act)


def test_an_api_server_that_hangs_up_is_tried_again_later() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async def act(kube: Kube, api: Api) -> None:
        server = await asyncio.start_server(hang_up, "127.0.0.1")
        port = server.sockets[0].getsockname()[1]
        lost = Kube(client.ApiClient(client.Configuration(host=f"http://127.0.0.1:{port}")))
        with pytest.raises(KubeError, match="can't be reached"):
            await lost.get("Pod", "n", "p")
        await lost.close()
        server.close()

    _with(act)
