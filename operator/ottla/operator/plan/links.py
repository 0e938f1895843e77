"""The links between brokers, and how they become encrypted while the cluster serves. Pure.

A broker expects one protocol at another broker's listener, so brokers can't change the protocol of one listener one
after the other. Instead there are two inter-broker listeners, a plain and an encrypted one, and a cluster goes through
the stages of `Links`, each of which takes a roll of all brokers and controllers:

| stage | open between brokers | brokers connect by |
|---|---|---|
| PLAIN | the plain listener | the plain one |
| OPENED | both | the plain one |
| SWITCHED | both | the encrypted one |
| ENCRYPTED | the encrypted listener | the encrypted one |

Brokers of neighbouring stages reach each other, others don't. So a cluster takes the next step only once every pod was
started with the stage before it; the same holds on the way back. A pod's annotation says its stage, and nothing is
remembered between two decisions.

The authorizer belongs to the last stage, because only there every broker has a name by which it gets its rights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ottla.operator.objects import Object
from ottla.operator.plan import names
from ottla.operator.plan.broker_pods import BROKER, CONTROLLER
from ottla.operator.spec.security import Links

_DOING = {
    Links.OPENED: "every broker opens both of its listeners for other brokers",
    Links.SWITCHED: "brokers connect to each other by the encrypted listener, and keep both open",
    Links.ENCRYPTED: "brokers close the plain listener",
}
_BACK = {
    Links.SWITCHED: "every broker opens the plain listener beside the encrypted one",
    Links.OPENED: "brokers connect to each other by the plain listener, and keep both open",
    Links.PLAIN: "brokers close the encrypted listener",
}


@dataclass(frozen=True)
class Standing:
    """The stages of a cluster's pods: those of the present pods, and those with which its StatefulSets make pods.
    `complete`: whether every wanted pod exists."""

    pods: tuple[Links, ...]
    templates: tuple[Links, ...]
    complete: bool

    @property
    def known(self) -> frozenset[Links]:
        """The stages of which there are pods, or may be pods soon."""
        return frozenset((*self.pods, *self.templates))

    @property
    def encrypted_everywhere(self) -> bool:
        """Whether every broker has the encrypted listener open, and every template keeps it so."""
        return bool(self.known) and min(self.known).encrypted_open


def standing(sets: Sequence[Object], pods: Sequence[Object]) -> Standing:
    """The stages of a cluster by its StatefulSets and pods, those of etcd left out."""
    sets, pods = _of_links(sets), _of_links(pods)
    wanted = sum(item["spec"].get("replicas", 0) for item in sets)
    return Standing(
        tuple(stage_of(pod["metadata"]) for pod in pods),
        tuple(stage_of(item["spec"]["template"]["metadata"]) for item in sets),
        complete=len(pods) >= wanted,
    )


def _of_links(items: Sequence[Object]) -> list[Object]:
    return [item for item in items if item["metadata"]["labels"].get(names.COMPONENT) in (BROKER, CONTROLLER)]


def stage_of(metadata: Object) -> Links:
    """The stage in a pod's annotations, or a template's. A stage that only a later release knows counts as the last
    one, from which each way back begins."""
    name = (metadata.get("annotations") or {}).get(names.LINKS, Links.PLAIN.name)
    return Links.__members__.get(name, Links.ENCRYPTED)


def aim(internal_tls: bool | None, now: Standing) -> Links:
    """The stage that a cluster is to reach. Where the spec says nothing (None), a new cluster gets encrypted links, and
    another one goes on as it is."""
    if internal_tls is not None:
        return Links.ENCRYPTED if internal_tls else Links.PLAIN
    return Links.ENCRYPTED if not now.known or max(now.known) > Links.PLAIN else Links.PLAIN


def next_stage(to: Links, now: Standing) -> Links:
    """The stage for which pods are to be made now, on the way to the stage `to`."""
    if not now.known:
        return to
    last, first = max(now.known), min(now.known)
    # A missing pod may come up by the template before the present one, if Kubernetes hasn't seen the change of the
    # template yet. So while a pod is missing, the templates go no further.
    if to > first:
        return Links(min(first + 1, to) if now.complete else min(first + 1, to, max(last, Links.OPENED)))
    return Links(max(last - 1, to) if now.complete else max(last - 1, to, min(first, Links.SWITCHED)))


def progress(to: Links, stage: Links, now: Standing) -> str:
    """What a cluster does at a stage on the way to the stage `to`; empty if all its pods have reached that one."""
    if now.known <= {to}:
        return ""
    return _BACK[stage] if to is Links.PLAIN else _DOING.get(stage, "")
