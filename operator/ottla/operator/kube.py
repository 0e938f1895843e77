"""A client of Kubernetes' API: objects are plain dictionaries, and are written by server-side apply under one field
manager.

All requests go through one client of `kubernetes.aio`. Paths are made from a table of the kinds that the operator uses,
so nothing has to be discovered first. An applied object is remembered together with the API server's result, so that
applying it again to an object that hasn't changed costs no request.
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
from ottla.wording import abridged

logger = logging.getLogger(__name__)

PAGE = 500
REQUEST_S_MAX = 30
_LEASES = "/apis/coordination.k8s.io/"


class KubeError(Retry):
    """Kubernetes refused a request, or couldn't be reached. `status`: the HTTP status (0: no answer); `message`: the
    answer's text."""

    def __init__(self, status: int, doing: str, message: str) -> None:
        super().__init__(f"{doing}: {message}")
        self.status = status
        self.message = message
        self.invalid = status in (400, 422)


class Kube:
    """A client of Kubernetes. `connect` makes one. Methods raise KubeError."""

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api
        self._applied: dict[
            tuple[str, str, str], tuple[str, str]
        ] = {}  # (kind, namespace, name) → hashes of the object that was applied and of the result
        self.writes = 0  # how many requests may have changed something, those for the lease aside; a metric

    @classmethod
    async def connect(cls) -> Kube:
        """Connects as the pod's service account or, outside of a pod, by $KUBECONFIG. Raises ConfigException."""
        try:
            config.load_incluster_config()
        except config.ConfigException:
            await config.load_kube_config()
        return cls(client.ApiClient())

    @classmethod
    async def connect_as_user(cls, context: str | None = None) -> Kube:
        """Connects as kubectl does, by its configuration and one of its contexts. Raises ConfigException."""
        await config.load_kube_config(context=context)
        return cls(client.ApiClient())

    async def version(self) -> str:
        """The version of Kubernetes, as `v1.33.5`."""
        return str((await self._request("GET", "/version", "asking Kubernetes for its version"))["gitVersion"])

    async def close(self) -> None:
        """Ends all connections."""
        await self._api.close()

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """One object; None where it or its kind doesn't exist."""
        try:
            return await self._request("GET", _path(kind, namespace, name), f"reading {kind} {name}")
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    async def knows(self, kind: str, namespace: str = "") -> bool:
        """Whether the API server knows a kind: definitions of kinds may be made and deleted at any time."""
        try:
            await self._request("GET", f"{_path(kind, namespace)}?limit=1", f"looking for {kind}")
        except KubeError as error:
            if error.status == 404:
                return False
            raise
        return True

    async def offers(self, kind: str, subresource: str) -> bool:
        """Whether the API server has a subresource of a kind: older releases of Kubernetes lack some subresources."""
        known = await self._request("GET", _root(kind), f"looking for {subresource} of {kind}")
        wanted = f"{KINDS[kind].plural}/{subresource}"
        return any(each["name"] == wanted for each in known["resources"])

    async def list(self, kind: str, namespace: str = "", labels: str = "") -> list[Object]:
        """All objects of a kind, in one namespace or, without one, in all. `labels`: a label selector."""
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
        """Server-side apply, which takes over fields from other managers. `observed` is the object as it was just read.

        If neither the wanted object nor the observed one has changed since the last apply, no request is sent, and
        `observed` is returned.
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
        """Changes an object or its subresource by a JSON merge patch (RFC 7396), and returns the object."""
        path = _path(kind, namespace, name) + (f"/{subresource}" if subresource else "")
        query = urlencode({"fieldManager": OPERATOR})
        return await self._request(
            "PATCH", f"{path}?{query}", f"patching {kind} {name}", patch, "application/merge-patch+json"
        )

    async def write_status(self, resource: Object, status: Object) -> None:
        """Replaces the status of an Ottla resource. Raises KubeError (409) if it has changed since it was read."""
        meta = resource["metadata"]
        change = merge_patch(resource.get("status") or {}, status)
        patch = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "status": change}
        await self.merge(resource["kind"], meta["namespace"], meta["name"], patch, "status")

    async def replace(self, wanted: Object) -> Object:
        """Replaces an object. Raises KubeError (409) if it has changed since it was read."""
        meta = wanted["metadata"]
        path = _path(wanted["kind"], meta.get("namespace", ""), meta["name"])
        return await self._request("PUT", path, f"replacing {wanted['kind']} {meta['name']}", wanted)

    async def create(self, wanted: Object) -> Object:
        """Creates an object. Raises KubeError (409) if it exists already."""
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
        """Deletes an object: with `uid` only if it still has that uid, with `version` only if it still has that
        resource version.

        Returns whether the object was deleted. `propagation` is Kubernetes' propagation policy.
        """
        body: Object = {"propagationPolicy": propagation}
        conditions = {"uid": uid, "resourceVersion": version}
        if preconditions := {name: value for name, value in conditions.items() if value is not None}:
            body["preconditions"] = preconditions
        self._applied.pop((kind, namespace, name), None)
        try:
            await self._request("DELETE", _path(kind, namespace, name), f"deleting {kind} {name}", body)
        except KubeError as error:
            if error.status in (404, 409):  # the object is gone, another one has its name, or it has changed
                return False
            raise
        return True

    async def event(self, about: Object, reason: str, message: str, now: datetime, *, warning: bool = False) -> None:
        """Writes an Event about a resource. If Kubernetes refuses the Event, the refusal is logged, and no error is
        raised."""
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
            "message": abridged(message, 1024),
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
            # The body is a dictionary, which the client encodes as JSON. A str would be sent only with another content
            # type.
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
    """The root path of a kind's API group and version."""
    version = KINDS[kind].api_version
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def _fingerprint(found: Object) -> str:
    """A digest of an object without its status, and without the metadata that every write changes. A change of the
    object by another client changes this digest."""
    meta = {
        name: value
        for name, value in found["metadata"].items()
        if name not in ("managedFields", "resourceVersion", "generation")
    }
    rest = {name: value for name, value in found.items() if name not in ("status", "metadata", "apiVersion", "kind")}
    return _digest({"metadata": meta, **rest})


def _digest(document: Object) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
