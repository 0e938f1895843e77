"""Looks at an installation of the operator from outside, as whoever asks: `ottla operator doctor`.

What it finds is judged by `diagnosis.py`. Rights are asked of Kubernetes itself (SubjectAccessReview), so that whatever
grants or denies them counts. What the person may not look at is a finding, too, and the rest is looked at all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

import yaml

from ottla.operator import diagnosis
from ottla.operator.diagnosis import NEEDLESS, Finding, Installation
from ottla.operator.kube import KubeError
from ottla.operator.objects import Object
from ottla.operator.rights import FOR_ITS_LEASE, IN_NAMESPACES, OF_NO_NAMESPACE, Asked, each

CRDS = Path(__file__).with_name("crds")
OPERATORS = "app.kubernetes.io/part-of=ottla,app.kubernetes.io/component=operator"
AT_A_TIME = 16


class Kubernetes(Protocol):
    """What is needed of it: `ottla.operator.kube.Kube`."""

    async def version(self) -> str:
        """As `v1.33.5`."""

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """One object; None where there is none, or none of its kind."""

    async def list(self, kind: str, namespace: str = "", labels: str = "") -> list[Object]:
        """All objects of a kind; of all namespaces where none is named."""

    async def create(self, wanted: Object) -> Object:
        """Makes an object, and gives what the API server made of it."""


class Doctor:
    """One look at everything."""

    def __init__(self, kube: Kubernetes, own_version: str, now: datetime) -> None:
        """`own_version`: of the Ottla that asks; `now`: in UTC."""
        self._kube = kube
        self._own_version = own_version
        self._now = now
        self._findings: list[Finding] = []

    async def look(self) -> list[Finding]:
        """What is wrong, the worst first. Raises KubeError where Kubernetes can't be reached."""
        self._found(diagnosis.of_kubernetes(await self._kube.version()))
        for path in sorted(CRDS.glob("*.yaml")):
            await self._definition(yaml.safe_load(path.read_text()))
        deployments = await self._list("Deployment", OPERATORS)
        operators = [diagnosis.installation(each) for each in deployments or ()]
        if deployments is not None:
            self._found(diagnosis.of_operators(operators, self._own_version))
        for one in operators:
            await self._lease(one)
            await self._rights(one)
        self._found(diagnosis.of_clusters(await self._list("Cluster") or (), operators, self._now))
        return sorted(dict.fromkeys(self._findings), key=lambda finding: not finding.broken)

    def _found(self, findings: Iterable[Finding]) -> None:
        self._findings += findings

    def _unreadable(self, error: KubeError) -> None:
        """Raises what isn't a matter of the person's rights."""
        if error.status != 403:
            raise error
        self._findings.append(Finding("your own rights", False, str(error), "ask as somebody who may see that"))

    async def _list(self, kind: str, labels: str = "") -> list[Object] | None:
        """None where that can't be known."""
        try:
            return await self._kube.list(kind, labels=labels)
        except KubeError as error:
            if error.status != 404:  # a kind that isn't defined, which is said already
                self._unreadable(error)
            return None

    async def _definition(self, wanted: Object) -> None:
        name = wanted["metadata"]["name"]
        try:
            found = await self._kube.get("CustomResourceDefinition", "", name)
        except KubeError as error:
            self._unreadable(error)
        else:
            self._found(diagnosis.of_definition(name, found, wanted))

    async def _lease(self, one: Installation) -> None:
        try:
            lease = await self._kube.get("Lease", one.ref.namespace, one.lease) if one.lease else None
        except KubeError as error:
            self._unreadable(error)
        else:
            self._found(diagnosis.of_lease(one, lease, self._now))

    async def _rights(self, one: Installation) -> None:
        try:
            for namespace in sorted(one.namespaces) or [""]:
                denied = await self._denied(one, [*each(IN_NAMESPACES), *NEEDLESS], namespace)
                self._found(diagnosis.of_rights(one, IN_NAMESPACES, namespace, denied))
                self._found(diagnosis.of_needless_rights(one, namespace, denied))
            denied = await self._denied(one, list(each(OF_NO_NAMESPACE)), "")
            self._found(diagnosis.of_rights(one, OF_NO_NAMESPACE, "", denied, needed=False))
            if one.lease:
                denied = await self._denied(one, list(each(FOR_ITS_LEASE)), one.ref.namespace)
                self._found(diagnosis.of_rights(one, FOR_ITS_LEASE, one.ref.namespace, denied))
        except KubeError as error:
            self._unreadable(error)

    async def _denied(self, one: Installation, rights: Sequence[Asked], namespace: str) -> frozenset[Asked]:
        denied: set[Asked] = set()
        for start in range(0, len(rights), AT_A_TIME):
            some = rights[start : start + AT_A_TIME]
            answers = await asyncio.gather(*(self._allowed(one, single, namespace) for single in some))
            denied.update(single for single, allowed in zip(some, answers, strict=True) if not allowed)
        return frozenset(denied)

    async def _allowed(self, one: Installation, single: Asked, namespace: str) -> bool:
        attributes = {
            "verb": single.verb,
            "group": single.group,
            "resource": single.resource,
            "subresource": single.subresource,
            "namespace": namespace,
        }
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{one.ref.namespace}", "system:authenticated"]
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "metadata": {"name": ""},
            "spec": {"user": one.user, "groups": groups, "resourceAttributes": attributes},
        }
        return bool((await self._kube.create(review))["status"]["allowed"])
