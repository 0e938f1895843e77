"""`ottla operator doctor`: examines an installation of the operator from outside. The command has the rights of the
person who runs it.

`diagnosis.py` judges the objects that are read here. Kubernetes itself is asked about the operator's rights
(SubjectAccessReview), so that every source of rights counts. If the person may not read something, that is a finding,
too, and everything else is examined all the same.
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
    """The part of `ottla.operator.kube.Kube` that the doctor needs."""

    async def version(self) -> str:
        """The version of Kubernetes, as `v1.33.5`."""

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """One object; None where it or its kind doesn't exist."""

    async def list(self, kind: str, namespace: str = "", labels: str = "") -> list[Object]:
        """All objects of a kind, in one namespace or, without one, in all."""

    async def create(self, wanted: Object) -> Object:
        """Creates an object, and returns it as the API server answers."""


class Doctor:
    """One examination of an installation."""

    def __init__(self, kube: Kubernetes, own_version: str, now: datetime) -> None:
        """`own_version`: the version of the Ottla that runs this; `now`: in UTC."""
        self._kube = kube
        self._own_version = own_version
        self._now = now
        self._findings: list[Finding] = []

    async def look(self) -> list[Finding]:
        """All findings; those that say that something is broken come first. Raises KubeError if Kubernetes can't be
        reached."""
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
        """Adds a finding if the API server refused a request for want of the person's rights. Raises other errors."""
        if error.status != 403:
            raise error
        self._findings.append(
            Finding("your own rights", False, str(error), "run the command as a user who may read these objects")
        )

    async def _list(self, kind: str, labels: str = "") -> list[Object] | None:
        """All objects of a kind; None where they can't be read."""
        try:
            return await self._kube.list(kind, labels=labels)
        except KubeError as error:
            if error.status != 404:  # 404: the kind isn't defined, which another finding says
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
