"""Resizes on a real API server: the operator's patch changes only the pod's resources, and the API server refuses some
resizes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kubernetes.aio.config import kube_config

from ottla.operator.kinds import KINDS, Kind
from ottla.operator.kube import Kube, KubeError
from ottla.operator.objects import Object
from ottla.operator.plan import names
from ottla.operator.plan.resize import Note, containers_resized, lacking, noted
from ottla.operator.resizing import SUBRESOURCE, is_of_this_pod
from tests.peers.kube_apiserver import KubeApiServer

pytestmark = pytest.mark.timeout(600)

BEFORE: Object = {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}}


def of_set(resources: Object) -> Object:
    containers = [{"name": "broker", "image": "ottla:1", "resources": resources}]
    return {"spec": {"template": {"metadata": {}, "spec": {"containers": containers}}}}


def test_an_api_server_takes_a_resize_and_says_what_it_refuses(
    server: KubeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(server.kubeconfig))

    async def resized(kube: Kube, resources: Object) -> Object:
        pod = await kube.get("Pod", "shop", "k-broker-0")
        assert pod is not None
        wanted = {"containers": containers_resized(of_set(resources), pod)}
        patch: dict[str, Any] = {"metadata": {"uid": pod["metadata"]["uid"]}, "spec": wanted}
        return await kube.merge("Pod", "shop", "k-broker-0", patch, SUBRESOURCE)

    async def whole() -> None:
        kube = await Kube.connect()
        try:
            await kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
            template = of_set(BEFORE)["spec"]["template"]
            beside = {"name": "beside", "image": "sidecar:1", "env": [{"name": "A", "value": "b"}]}
            spec = {**template["spec"], "containers": [*template["spec"]["containers"], beside]}
            meta = {"namespace": "shop", "name": "k-broker-0"}
            made = await kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
            assert await kube.offers("Pod", SUBRESOURCE)
            assert not await kube.offers("Pod", "resized")

            note = Note(made["metadata"]["uid"], "k-broker-1", "2026-05-01T12:00:00Z")
            annotations = {names.RESIZE: note.text}
            pod = await kube.merge("Pod", "shop", "k-broker-0", {"metadata": {"annotations": annotations}})
            assert noted(pod) == note

            more = {"requests": {"cpu": "0.5", "memory": "512Mi"}, "limits": {"memory": "2048Mi"}}
            pod = await resized(kube, more)
            assert pod["metadata"]["uid"] == made["metadata"]["uid"]
            assert pod["metadata"]["generation"] == made["metadata"]["generation"] + 1
            assert pod["spec"]["containers"][0].pop("resources") == {
                "requests": {"cpu": "500m", "memory": "512Mi"},
                "limits": {"memory": "2Gi"},
            }
            del made["spec"]["containers"][0]["resources"]
            assert pod["spec"] == made["spec"]

            for refused in (
                {**BEFORE, "limits": {"memory": "1Gi", "ephemeral-storage": "1Gi"}},
                {"requests": {"memory": "4Gi"}, "limits": {"memory": "1Gi"}},
            ):
                with pytest.raises(KubeError) as error:
                    await resized(kube, refused)
                assert is_of_this_pod(error.value), error.value

            # The limits would no longer be the requests, so the pod would change its QoS class.
            both = {"cpu": "1", "memory": "1Gi"}
            alone = of_set({"requests": both, "limits": both})["spec"]["template"]["spec"]
            await kube.delete("Pod", "shop", "k-broker-0")
            await kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": alone})
            with pytest.raises(KubeError) as error:
                await resized(kube, {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": both})
            assert is_of_this_pod(error.value)
            assert "QOS" in error.value.message
            await kube.delete("Pod", "shop", "k-broker-0")
        finally:
            await kube.close()

    asyncio.run(asyncio.wait_for(whole(), 300))


POLICY, BINDING = "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"
CAPPED = """Object{spec: Object.spec{containers: [Object.spec.containers{
  name: "broker", resources: Object.spec.containers.resources{limits: {"memory": "1Gi"}}}]}}"""


def test_what_admission_makes_of_a_resize_is_in_the_answer(
    server: KubeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy caps the memory of resized pods: the API server answers 200, with a pod that has less than was asked
    for."""
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(server.kubeconfig))
    api = "admissionregistration.k8s.io/v1"
    monkeypatch.setitem(KINDS, POLICY, Kind(api, "mutatingadmissionpolicies"))
    monkeypatch.setitem(KINDS, BINDING, Kind(api, "mutatingadmissionpolicybindings"))
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods/resize"]}
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": CAPPED}}],
    }
    more = of_set({"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}})

    async def whole() -> None:
        kube = await Kube.connect()
        try:
            if not await kube.knows(POLICY):
                pytest.skip(f"needs an API server with {POLICY} (1.36)")
            await kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
            await kube.apply({"apiVersion": api, "kind": POLICY, "metadata": {"name": "cap"}, "spec": spec})
            bound = {"policyName": "cap"}
            await kube.apply({"apiVersion": api, "kind": BINDING, "metadata": {"name": "cap"}, "spec": bound})
            meta = {"namespace": "shop", "name": "k-broker-0"}
            containers = of_set(BEFORE)["spec"]["template"]["spec"]
            pod = await kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": containers})
            for _ in range(100):  # a policy takes effect only a moment after its creation
                patch = {"spec": {"containers": containers_resized(more, pod)}}
                answer = await kube.merge("Pod", "shop", "k-broker-0", patch, SUBRESOURCE)
                if lacks := lacking(more, answer):
                    break
                patch = {"spec": {"containers": containers_resized(of_set(BEFORE), pod)}}
                await kube.merge("Pod", "shop", "k-broker-0", patch, SUBRESOURCE)
                await asyncio.sleep(0.3)
            assert lacks == "limit of memory of broker was to be 2Gi, and is 1Gi"
            await kube.delete("Pod", "shop", "k-broker-0")
            for kind in (BINDING, POLICY):
                await kube.delete(kind, "", "cap")
        finally:
            await kube.close()

    asyncio.run(asyncio.wait_for(whole(), 300))
