"""The edge to Kubernetes: plain dictionaries in and out, server-side apply under one field manager.

Everything goes through one client of `kubernetes.aio`; paths are made here, from a table of the kinds that the operator
uses, so nothing has to be discovered first. What is applied is remembered with what the cluster made of it, so that
applying it again to an object that nobody has touched costs no request at all.
"""

from __future__ import annotations

import hashlib
import json
import logging
from datetime import datetime
from typing import cast
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException

from ottla.operator.kinds import KINDS
from ottla.operator.objects import OPERATOR, Object, merge_patch, timestamp
from ottla.operator.queue import Retry, why

logger = logging.getLogger(__name__)

PAGE = 500
REQUEST_S_MAX = 30
_LEASES = "/apis/coordination.k8s.io/"


class KubeError(Retry):
    """Kubernetes refused a request; `status` is HTTP's, the text its own."""

    def __init__(self, status: int, doing: str, message: str) -> None:
        super().__init__(f"{doing}: {message}")
        self.status = status
        self.message = message


class Kube:
    """Kubernetes as the operator sees it. `connect` makes one."""

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api
        self._applied: dict[
            tuple[str, str, str], tuple[str, str]
        ] = {}  # what was applied → hashes of it and its result
        self.writes = 0  # requests that change something, other than to renew the lease; a metric

    @classmethod
    async def connect(cls) -> Kube:
        """As the pod's service account, or, outside a cluster, as $KUBECONFIG says. Raises ConfigException."""
        try:
            config.load_incluster_config()
        except config.ConfigException:
            await config.load_kube_config()
        return cls(client.ApiClient())

    @classmethod
    async def connect_as_user(cls, context: str | None = None) -> Kube:
        """As kubectl does, by its configuration and one of its contexts. Raises ConfigException."""
        await config.load_kube_config(context=context)
        return cls(client.ApiClient())

    async def version(self) -> str:
        """Of Kubernetes, as `v1.33.5`."""
        return str((await self._request("GET", "/version", "asking Kubernetes for its version"))["gitVersion"])

    async def close(self) -> None:
        """Ends all connections."""
        await self._api.close()

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """One object; None where there is none, or none of its kind."""
        try:
            return await self._request("GET", _path(kind, namespace, name), f"reading {kind} {name}")
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    async def knows(self, kind: str, namespace: str = "") -> bool:
        """Whether there is such a kind: definitions of kinds come and go."""
        try:
            await self._request("GET", f"{_path(kind, namespace)}?limit=1", f"looking for {kind}")
        except KubeError as error:
            if error.status == 404:
                return False
            raise
        return True

    async def offers(self, kind: str, subresource: str) -> bool:
        """Whether the API server has this part of a kind: older ones lack some."""
        known = await self._request("GET", _root(kind), f"looking for {subresource} of {kind}")
        wanted = f"{KINDS[kind].plural}/{subresource}"
        return any(each["name"] == wanted for each in known["resources"])

    async def list(self, kind: str, namespace: str = "", labels: str = "") -> list[Object]:
        """All objects of a kind; of all namespaces where none is named."""
        found: list[Object] = []
        query: dict[str, str] = {"limit": str(PAGE)}
        if labels:
            query["labelSelector"] = labels
        while True:
            page = await self._request("GET", f"{_path(kind, namespace)}?{urlencode(query)}", f"listing {kind}")
            found.extend(page.get("items") or ())
            token = page.get("metadata", {}).get("continue")
            if not token:
                return found
            query["continue"] = token

    async def apply(self, wanted: Object, observed: Object | None = None) -> Object:
        """Server-side apply, taking over what others set; `observed` is the object as it was just read.

        Without a difference since the last time nothing is sent, and `observed` is returned.
        """
        meta = wanted["metadata"]
        kind, key = wanted["kind"], (wanted["kind"], meta.get("namespace", ""), meta["name"])
        digest = _digest(wanted)
        if observed is not None and self._applied.get(key) == (digest, _fingerprint(observed)):
            return observed
        query = urlencode({"fieldManager": OPERATOR, "force": "true"})
        path = f"{_path(kind, key[1], key[2])}?{query}"
        done = await self._request("PATCH", path, f"applying {kind} {key[2]}", wanted, "application/apply-patch+yaml")
        self._applied[key] = (digest, _fingerprint(done))
        return done

    async def merge(self, kind: str, namespace: str, name: str, patch: Object, subresource: str = "") -> Object:
        """A JSON merge patch."""
        path = _path(kind, namespace, name) + (f"/{subresource}" if subresource else "")
        query = urlencode({"fieldManager": OPERATOR})
        return await self._request(
            "PATCH", f"{path}?{query}", f"patching {kind} {name}", patch, "application/merge-patch+json"
        )

    async def write_status(self, resource: Object, status: Object) -> None:
        """Replaces the status of a resource of ours. Raises KubeError (409) if it was changed since it was read."""
        meta = resource["metadata"]
        change = merge_patch(resource.get("status") or {}, status)
        patch = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "status": change}
        await self.merge(resource["kind"], meta["namespace"], meta["name"], patch, "status")

    async def replace(self, wanted: Object) -> Object:
        """Replaces an object, if nobody has changed it since it was read."""
        meta = wanted["metadata"]
        path = _path(wanted["kind"], meta.get("namespace", ""), meta["name"])
        return await self._request("PUT", path, f"replacing {wanted['kind']} {meta['name']}", wanted)

    async def create(self, wanted: Object) -> Object:
        """Makes an object that isn't there yet. Raises KubeError (409) where there is one."""
        meta = wanted["metadata"]
        return await self._request(
            "POST", _path(wanted["kind"], meta.get("namespace", "")), f"creating {wanted['kind']}", wanted
        )

    async def delete(
        self,
        kind: str,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        version: str | None = None,
        propagation: str = "Background",
    ) -> bool:
        """Deletes an object, with `uid` only that one, with `version` only as it was read; whether it was deleted."""
        body: Object = {"propagationPolicy": propagation}
        conditions = {"uid": uid, "resourceVersion": version}
        if preconditions := {name: value for name, value in conditions.items() if value is not None}:
            body["preconditions"] = preconditions
        self._applied.pop((kind, namespace, name), None)
        try:
            await self._request("DELETE", _path(kind, namespace, name), f"deleting {kind} {name}", body)
        except KubeError as error:
            if error.status in (404, 409):  # gone, or another one by now
                return False
            raise
        return True

    async def event(self, about: Object, reason: str, message: str, now: datetime, *, warning: bool = False) -> None:
        """An Event about a resource. One that can't be written is only missed."""
        meta = about["metadata"]
        stamp = timestamp(now)
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{meta['name'][:40]}.", "namespace": meta["namespace"]},
            "involvedObject": {
                "apiVersion": about["apiVersion"],
                "kind": about["kind"],
                "namespace": meta["namespace"],
                "name": meta["name"],
                "uid": meta["uid"],
            },
            "reason": reason,
            "message": message[:1024],
            "type": "Warning" if warning else "Normal",
            "source": {"component": OPERATOR},
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
        try:
            await self.create(body)
        except Retry as error:
            logger.warning("event %s of %s is missing: %s", reason, meta["name"], error)

    async def _request(
        self, method: str, path: str, doing: str, body: Object | None = None, content: str = "application/json"
    ) -> Object:
        headers = {"Accept": "application/json", "Content-Type": content}
        if method != "GET" and not path.startswith(_LEASES):
            self.writes += 1
        try:
            # A str is sent as it is, but only under a type that isn't JSON's: the client turns dictionaries into text.
            request = await self._api.param_serialize(
                method, path, header_params=headers, body=body, auth_settings=["BearerToken"]
            )
            answer = await self._api.call_api(*request, _request_timeout=REQUEST_S_MAX)
            content_bytes = await answer.read()
        except (OSError, TimeoutError, aiohttp.ClientError, ApiException) as error:
            raise KubeError(0, doing, f"{self._api.configuration.host} can't be reached ({why(error)})") from error
        try:
            document = cast(Object, json.loads(content_bytes))
        except ValueError:
            document = {"message": content_bytes.decode(errors="replace")[:200]}
        if not 200 <= answer.status <= 299:
            raise KubeError(answer.status, doing, document.get("message") or f"HTTP {answer.status}")
        return document


def _path(kind: str, namespace: str, name: str = "") -> str:
    parts = [_root(kind)]
    if namespace:
        parts += ["namespaces", quote(namespace)]
    parts.append(KINDS[kind].plural)
    if name:
        parts.append(quote(name))
    return "/".join(parts)


def _root(kind: str) -> str:
    """Of the API that the kind belongs to."""
    version = KINDS[kind].api_version
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def _fingerprint(found: Object) -> str:
    """What a drift would change: everything but the status and what each write changes."""
    meta = {
        name: value
        for name, value in found["metadata"].items()
        if name not in ("managedFields", "resourceVersion", "generation")
    }
    rest = {name: value for name, value in found.items() if name not in ("status", "metadata", "apiVersion", "kind")}
    return _digest({"metadata": meta, **rest})


def _digest(document: Object) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
