"""Empties volumes that the spec doesn't want any more: each broker moves the replicas on such a volume to its other
volumes.

Each broker gets requests of its own, and does what they ask: it places no new replicas on such a volume, and moves the
present replicas away, a few at a time. When no replica is left, an annotation of the volume's claim says so
(`plan/volumes.py` says why, and what follows). The annotation is written only after two reconciles saw no replica: a
replica that was placed just before the request is listed only later.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ottla.net.admin import BROKER as BROKER_RESOURCE
from ottla.operator.kafka import KafkaAdmin, Unreachable, admin_of, said
from ottla.operator.kube import Kube
from ottla.operator.objects import Object, Ref, annotation, ref_of
from ottla.operator.plan import names
from ottla.operator.plan.broker_pods import BROKER
from ottla.operator.plan.observed import address, is_ready
from ottla.operator.plan.storage import Storage
from ottla.operator.plan.volumes import EMPTIED_FOR, claims_by_volume, emptied, is_left_behind, is_noted, mounted
from ottla.operator.queue import Retry
from ottla.operator.refusals import Refusals
from ottla.operator.spec.cluster import Pool
from ottla.operator.visit import Visit, ordinal
from ottla.protocol.errors import KafkaError
from ottla.wording import counted

logger = logging.getLogger(__name__)

CORDONED = "cordoned.log.dirs"
CLAIM = "PersistentVolumeClaim"


@dataclass(frozen=True)
class _Broker:
    """A broker's pod, its claims by the volumes' ids, and the ids of the volumes that the spec wants."""

    pod: Object
    claims: dict[int, Object]
    wanted: frozenset[int]

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])

    @property
    def going(self) -> list[int]:
        """The volumes that the pod mounts and the spec doesn't want."""
        return sorted(mounted(self.pod) - self.wanted)

    @property
    def noted(self) -> list[int]:
        """The volumes whose claims have the annotation EMPTIED_FOR: they are being emptied, or were emptied once."""
        return [volume for volume, claim in self.claims.items() if is_noted(claim)]

    @property
    def leaves(self) -> bool:
        """Whether the broker was drained, and is removed with all its volumes."""
        return any(is_left_behind(self.claims[volume]) for volume in mounted(self.pod) & self.claims.keys())

    @property
    def stays(self) -> list[int]:
        """The volumes that were being emptied, and are wanted again."""
        return [volume for volume in self.noted if volume in mounted(self.pod) & self.wanted]


class Emptying:
    """Empties the unwanted volumes of any cluster's brokers."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._empty: dict[Ref, tuple[str, list[int]]] = {}  # pod → its uid, and the volumes that were seen empty once

    async def empty(self, visit: Visit) -> None:
        """Takes the next step for each broker. Raises Retry with the first refusal."""
        refusals = Refusals()
        for number, pod in visit.broker_pods().items():
            if number in visit.draining and is_ready(pod) and _present_cordon(visit, number):
                with refusals.gathered():
                    await self._lift_cordon(visit, pod)
        for pool in visit.cluster.pools:
            for broker in _brokers(visit, pool):
                if broker.leaves or ordinal(broker.pod) in visit.draining:
                    continue
                with refusals.gathered():
                    told = await self._empty_volumes_of(visit, broker)
                    if told and not pool.keep_volumes:
                        await self._delete_emptied(visit, broker)
        refusals.told()

    async def _lift_cordon(self, visit: Visit, pod: Object) -> None:
        """Resets `cordoned.log.dirs` of a broker that is being drained before its removal. The broker gets no new
        replicas anyway. But the setting belongs to the broker's id, so that a later broker of this id would begin with
        the cordon."""
        admin = admin_of(address(pod), visit.link)
        try:
            await self._cordon(admin, ordinal(pod), "")
        except Unreachable:
            logger.debug("%s doesn't answer: its cordon stays for now", pod["metadata"]["name"])
        except KafkaError as error:
            raise Retry(f"{pod['metadata']['name']} doesn't lift its cordon: {said(error)}") from error
        finally:
            admin.close()

    async def _empty_volumes_of(self, visit: Visit, broker: _Broker) -> bool:
        """Takes the next step for one broker. Returns whether the broker cordons the right directories.

        `cordoned.log.dirs` belongs to the broker's id. So a new broker inherits the setting if an earlier broker of
        that id was removed while a volume of that broker was being emptied. The setting of such a broker is reset, too.
        """
        wanted = _cordon_of(broker)
        present = _present_cordon(visit, ordinal(broker.pod))
        if not broker.going and not broker.stays and (present == wanted or (present is None and not broker.noted)):
            return True
        visit.busy = True
        if not is_ready(broker.pod):
            self._says(visit, broker, f"waiting for {broker.name} to be ready")
            return False
        # If a volume is wanted again, the annotation EMPTIED_FOR of its claim is set to an empty text before the broker
        # may place replicas on it. The annotation is removed only after that, because cordoned volumes are found by it.
        for volume in broker.going:
            if volume not in broker.noted:
                await self._note(visit, broker, volume, "")
        for volume in broker.stays:
            if annotation(broker.claims[volume], EMPTIED_FOR):
                await self._note(visit, broker, volume, "")
        admin = admin_of(address(broker.pod), visit.link)
        try:
            if present != wanted:
                await self._cordon(admin, ordinal(broker.pod), wanted)
            for volume in broker.stays:
                await self._note(visit, broker, volume, None)
            if broker.going:
                await self._move(visit, broker, admin)
        except Unreachable:
            self._says(visit, broker, f"waiting for {broker.name} to answer")
            return False
        except KafkaError as error:
            raise Retry(f"{broker.name} doesn't empty its volumes: {said(error)}") from error
        finally:
            admin.close()
        return True

    async def _cordon(self, admin: KafkaAdmin, broker: int, wanted: str) -> None:
        """Tells a broker the directories on which it places no new replicas."""
        if (await admin.settings(BROKER_RESOURCE, str(broker))).get(CORDONED, "") != wanted:
            given, reset = ({CORDONED: wanted}, ()) if wanted else ({}, (CORDONED,))
            await admin.configure_brokers(given, reset, broker=str(broker))

    async def _move(self, visit: Visit, broker: _Broker, admin: KafkaAdmin) -> None:
        """Moves some replicas away from the unwanted volumes, or notes that no replica is on them."""
        key = ref_of(broker.pod)
        going = [names.log_directory(volume) for volume in broker.going]
        directories = await admin.log_directories()
        plan = emptied(directories, going)
        if plan.moves:
            await admin.move_to_directories(plan.moves)
        unknown = _unopened(visit, ordinal(broker.pod))
        if plan.waits_for or plan.left or unknown:
            self._says(visit, broker, plan.waits_for or unknown or _left(plan.left))
            self._empty.pop(key, None)
            for volume in broker.going:
                if volume in broker.claims and annotation(broker.claims[volume], EMPTIED_FOR):
                    await self._note(visit, broker, volume, "")
        elif self._empty.get(key) != (broker.uid, broker.going):
            self._says(visit, broker, "the volume seems empty, and is checked once more")
            self._empty[key] = broker.uid, broker.going
        else:
            self._says(visit, broker, f"the volume is empty, and {broker.name} is restarted without it")
            for volume in broker.going:
                if annotation(broker.claims.get(volume, broker.pod), EMPTIED_FOR) != broker.uid:
                    await self._note(visit, broker, volume, broker.uid)
                    await visit.tell(
                        "VolumeEmptied", f"no replica is left on volume {names.volume(volume)}-{broker.name}"
                    )

    def _says(self, visit: Visit, broker: _Broker, waits_for: str) -> None:
        if broker.going:
            named = ", ".join(f"{names.volume(volume)}-{broker.name}" for volume in broker.going)
            visit.findings.storage_is(Storage("Emptying", f"volume {named} is emptied to be removed: {waits_for}"))

    async def _note(self, visit: Visit, broker: _Broker, volume: int, emptied_for: str | None) -> None:
        if (claim := broker.claims.get(volume)) is not None:
            meta = claim["metadata"]
            patch = {"metadata": {"uid": meta["uid"], "annotations": {EMPTIED_FOR: emptied_for}}}
            await self._kube.merge(CLAIM, visit.cluster.namespace, meta["name"], patch)

    async def _delete_emptied(self, visit: Visit, broker: _Broker) -> None:
        """Deletes the emptied claims of a broker in a pool that doesn't keep its volumes.

        A claim is deleted once the pod doesn't mount it, and the broker was told that the directory isn't cordoned any
        more. Until then the claim's annotation is needed: by it the operator knows that the broker has to be told.
        """
        for volume, claim in broker.claims.items():
            if volume not in broker.wanted | mounted(broker.pod) and annotation(claim, EMPTIED_FOR):
                meta = claim["metadata"]
                await self._kube.delete(CLAIM, visit.cluster.namespace, meta["name"], uid=meta["uid"])
                await visit.tell("VolumeDeleted", f"volume {meta['name']} isn't wanted any more, and was emptied")


def _left(replicas: int) -> str:
    return f"{counted(replicas, 'replica')} {'is' if replicas == 1 else 'are'} still on the volume"


def _present_cordon(visit: Visit, broker: int) -> str | None:
    """The value of `cordoned.log.dirs` that a broker has; None where it isn't known."""
    own = (visit.own_settings or {}).get(broker)
    return None if own is None else own.get(CORDONED, "")


def _cordon_of(broker: _Broker) -> str:
    """The value of `cordoned.log.dirs`: the directories on which the broker is to place no new replicas."""
    return ",".join(names.log_directory(volume) for volume in broker.going)


def _unopened(visit: Visit, broker: int) -> str:
    """Why a volume may have replicas that its broker doesn't list (the broker can't open their logs); else empty."""
    report = next((pod.report for pod in visit.findings.pods or () if pod.id == broker), None)
    if report is None:
        return "waiting for the broker's report on logs that it couldn't open"
    if report.offline:
        return f"the broker can't open the log of partition {report.offline[0]}, which may be on this volume"
    return ""


def _brokers(visit: Visit, pool: Pool) -> list[_Broker]:
    claims, wanted = visit.found.by_name(CLAIM, BROKER), frozenset(volume.id for volume in pool.volumes)
    return [
        _Broker(pod, claims_by_volume(pod["metadata"]["name"], claims), wanted)
        for pod in visit.found.all("Pod", BROKER)
        if names.set_of(pod["metadata"]["name"]) == names.broker_set(visit.cluster, pool)
    ]
