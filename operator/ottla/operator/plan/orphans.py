"""Topics whose Topic resource is gone: which are deleted, and which wait for a person. Pure; the time is an input.

A topic's mark is the setting that names the Topic resource that owns the topic, and its Cluster (`topic_owner.py`).

No finalizer keeps a Topic resource until its topic is deleted. So the operator sees only that a resource isn't there. A
person may have deleted it, or it may have been lost: with the definition of its kind, with the state of Kubernetes, or
by a mistake of a tool that applies all resources. Therefore:

1. A topic is touched only after its resource was away for `SETTLE_S`, so that resources that vanish together are
   counted together.
2. While the definition isn't there, or is being deleted, no topic is touched. A topic whose resource is older than the
   definition is never touched, because that resource vanished with an earlier definition.
3. If a topic's mark names another Cluster than the topic's present one, the topic waits, however few such topics there
   are: the Cluster was made again, or restored, and its Topics may not have been applied yet. Once the
   operator sees the Topic, it renews the mark.
4. If this Kubernetes doesn't remember a topic's resource (`remembered.py`), the topic waits, however few such topics
   there are: Kubernetes was restored to a state from before the resource was made, and nobody deleted the resource.
5. If more than a tenth of the owned topics (and more than `FEW`) have lost their resources within `WINDOW_S`, all of
   these topics wait. They go on waiting whatever happens afterwards, because each topic's settings say so (`HELD` in
   place of the deletion policy).

A waiting topic is deleted once a person confirms the deletion by a token that is valid for exactly these topics. If a
resource claims the topic's name again, the topic isn't an orphan any more.

A resource that was deleted and made again under its own name claims its predecessor's topic. Kubernetes has one object
of a name at a time, so the predecessor isn't there any more, and its topic is deleted by the same rules as if no
resource claimed it: the new resource gets a topic of its own afterwards. The new resource takes the topic over where

- a rule makes the topic wait, because then probably no person wanted the deletion;
- the new resource's policy is Retain: its author wants the records kept, whatever the earlier policy was;
- an earlier release of the operator has written the new resource's status, and this status doesn't say that the
  resource waits for the deletion of its predecessor's topic (`answered`): such releases gave the topic to any resource
  of its name. If the spec of that resource was invalid, the topic kept the earlier mark.

A resource of another name takes the topic over in any case: it may have been made so that the topic still has an owner
after its first resource is deleted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from ottla.operator.plan.remembered import Remembered
from ottla.operator.plan.topic import POLICY, Configure, KafkaTopic
from ottla.operator.plan.topic_owner import Owner, read_mark
from ottla.operator.spec.topic import DeletionPolicy, TopicResource

SETTLE_S = 10.0
WINDOW_S = 600.0
FEW = 3
HELD = "Held"
MASS_DISAPPEARANCE = "MassDisappearance"
CLUSTER_MADE_ANEW = "ClusterMadeAnew"
TOPICS_NOT_REMEMBERED = "TopicsNotRemembered"


class Orphan(NamedTuple):
    """A topic whose owner, a Topic resource, is gone."""

    topic: KafkaTopic
    owner: Owner
    policy: DeletionPolicy
    held: bool = False  # the topic's settings say that it waits for a person
    remade: bool = False  # its owner was made again under its name, and claims the topic


class Definition(NamedTuple):
    """The definition of the Topic kind: when it was made, whether it is being deleted."""

    created: str
    deleting: bool = False


class Unreadable(NamedTuple):
    """A definition that the operator isn't allowed to read."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which orphans to delete or release now, which wait for a person, and when to look again.

    `look_again_s` is None where no orphan has to wait for `SETTLE_S`.
    """

    due: tuple[Orphan, ...] = ()
    held: tuple[Orphan, ...] = ()  # these wait for a person, for the reason `why`
    taken_over: tuple[Orphan, ...] = ()  # these would wait for a person if their owners hadn't been made again
    settling: tuple[Orphan, ...] = ()  # their resources haven't been away for SETTLE_S yet
    why: str = ""
    reason: str = ""  # `why` as a word for programs
    token: str = ""
    look_again_s: float | None = None


def orphans(
    topics: Iterable[KafkaTopic],
    resources: Iterable[TopicResource],
    vanished: Mapping[str, DeletionPolicy],
    answered: Collection[str] = (),
    watched: frozenset[str] | None = None,
) -> list[Orphan]:
    """The owned topics whose resource is gone, and whose name no resource claims, or only that resource's successor.

    `vanished`: the policies that vanished resources had when they were last seen, by uid; they may be newer than the
    policies in the topics' settings. `answered`: the uids of resources to which an earlier operator has given another
    answer than to wait for the deletion of their predecessor's topic. `watched`: the namespaces that the operator
    watches, or None if it watches all; the operator knows no owners in other namespaces.
    """
    uids: set[str] = set()
    claimants: dict[str, list[TopicResource]] = {}
    for resource in resources:
        uids.add(resource.uid)
        claimants.setdefault(resource.topic, []).append(resource)
    found = []
    for topic in topics:
        owner = read_mark(topic.owner)
        if owner is None or owner.uid in uids:
            continue
        if watched is not None and owner.ref.namespace not in watched:
            continue
        held = topic.overrides.get(POLICY) == HELD
        recorded = held or topic.overrides.get(POLICY) == DeletionPolicy.DELETE.value
        policy = vanished.get(owner.uid, DeletionPolicy.DELETE if recorded else DeletionPolicy.RETAIN)
        claimed_by = claimants.get(topic.name, [])
        remade = (
            policy is DeletionPolicy.DELETE
            and not held
            and [claimant.ref for claimant in claimed_by] == [owner.ref]
            and claimed_by[0].deletion_policy is DeletionPolicy.DELETE
            and claimed_by[0].uid not in answered
        )
        if remade or not claimed_by:
            found.append(Orphan(topic, owner, policy, held, remade))
    return found


class Disappearances:
    """The orphans that appeared in one cluster lately. They are kept in memory: for a new process of the operator, all
    orphans have just appeared."""

    def __init__(self) -> None:
        self._noticed: dict[UUID, float] = {}
        self._dealt_with: dict[UUID, float] = {}
        self._held: set[UUID] = set()
        self._confirmed: set[UUID] = set()

    def judge(
        self,
        now: float,
        orphans: list[Orphan],
        owned: int,
        definition: Definition | Unreadable | None,
        remembered: Remembered,
        confirmed: str,
    ) -> Verdict:
        """Decides about all orphans of the cluster. `now`: seconds of any monotonic clock.

        `owned`: how many topics have an owner, including orphans; `definition` is None if the Topic kind isn't defined;
        `remembered`: the record of the Topics that Kubernetes has had for this Cluster; `confirmed`: the token that a
        person has given.
        """
        ids = {orphan.topic.id for orphan in orphans}
        self._noticed = {topic: self._noticed.get(topic, now) for topic in ids}
        self._held = self._held & ids | {orphan.topic.id for orphan in orphans if orphan.held}
        self._confirmed &= ids
        self._dealt_with = {topic: then for topic, then in self._dealt_with.items() if now - then < WINDOW_S}
        if not orphans:
            return Verdict()
        reason, why = MASS_DISAPPEARANCE, self._mass(ids, owned, definition)
        if why:
            self._held |= ids
        elif isinstance(definition, Definition) and (
            older := {orphan.topic.id for orphan in orphans if orphan.owner.created < definition.created}
        ):
            self._held |= older
            why = "the definition of the Topic kind was deleted and made anew"
        foreign = {orphan.topic.id for orphan in orphans if orphan.owner.cluster_uid != remembered.cluster_uid}
        self._held |= foreign
        if foreign and not why:
            reason, why = CLUSTER_MADE_ANEW, "the Topic resources of these topics belonged to an earlier Cluster"
        forgotten = {orphan.topic.id for orphan in orphans if not remembered.has(orphan.owner.uid)} - foreign
        self._held |= forgotten
        if forgotten and not why:
            reason, why = TOPICS_NOT_REMEMBERED, "Kubernetes has no record of these topics' Topic resources"
        self._held -= self._confirmed
        kept = [orphan for orphan in orphans if orphan.topic.id in self._held]
        taken_over = tuple(orphan for orphan in kept if orphan.remade)
        held = tuple(orphan for orphan in kept if not orphan.remade)
        if held and confirmed == confirmation(held):
            self._confirmed |= {orphan.topic.id for orphan in held}
            self._held -= self._confirmed
            held = ()
        agreed = [orphan for orphan in orphans if orphan.topic.id in self._confirmed]
        waiting = [orphan for orphan in orphans if orphan.topic.id not in self._held | self._confirmed]
        due = [orphan for orphan in waiting if now - self._noticed[orphan.topic.id] >= SETTLE_S]
        settling = tuple(orphan for orphan in waiting if now - self._noticed[orphan.topic.id] < SETTLE_S)
        self._dealt_with |= {orphan.topic.id: now for orphan in due}
        pauses = [SETTLE_S - now + self._noticed[orphan.topic.id] for orphan in settling]
        return Verdict(
            (*agreed, *due),
            held,
            taken_over,
            settling,
            (why or "too many topics lost their resources at once") if held else "",
            reason if held else "",
            confirmation(held) if held else "",
            min(pauses, default=None),
        )

    def _mass(self, orphans: set[UUID], owned: int, definition: Definition | Unreadable | None) -> str:
        if definition is None:
            return "the definition of the Topic kind is gone"
        if isinstance(definition, Definition) and definition.deleting:
            return "the definition of the Topic kind is being deleted"
        gone = len(self._dealt_with.keys() - orphans)
        count, whole = len(orphans - self._confirmed) + gone, owned + gone
        if isinstance(definition, Unreadable) and count == whole:
            return "all of the cluster's Topic resources are gone"
        if count > max(FEW, whole // 10):
            return f"{count} of {whole} topics lost their resources at once"
        return ""


def hold(orphan: Orphan) -> Configure | None:
    """The step that notes in the topic's settings that the topic waits; None if they say so already, or the policy is
    Retain."""
    if orphan.held or orphan.policy is not DeletionPolicy.DELETE:
        return None
    return Configure(orphan.topic.name, {POLICY: HELD})


def confirmation(orphans: Iterable[Orphan]) -> str:
    """The token by which a person confirms that exactly these topics may be deleted."""
    ids = "".join(sorted(orphan.topic.id.hex for orphan in orphans))
    return hashlib.sha256(ids.encode()).hexdigest()[:10]
