"""Brings a cluster to what its resource says: one reconcile carries out a table of small parts, each level-triggered.

If a part is refused or fails unexpectedly, only the parts that depend on this part aren't done (`parts.py`). Each
failure causes an Event of type Warning, and sets a condition and a metric of that part until the part succeeds.

The order of the table, and why: (1) the objects that pods need before they start (certificates, Services, files); (2)
etcd, without which a broker can't start; (3) the StatefulSets of brokers and controllers; (4) the brokers' reports; (5)
the restart of a pod of etcd or of the controllers, if one is due; (6) the decision about the brokers' pods, with the
budget for evictions, which is applied before a broker's pod is resized or restarted; (7) requests to running brokers;
(8) at last the deletion of objects that no part plans any more.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ottla.operator.absences import Absences
from ottla.operator.administration import Administration, asking
from ottla.operator.broker_certificates import tell_kubelets, tell_refused
from ottla.operator.broker_sets import BrokerSets
from ottla.operator.brokers import BrokerPages
from ottla.operator.claims import hold_new_volumes, look_at_volumes
from ottla.operator.etcd import EtcdKeeper
from ottla.operator.etcd_secrets import with_secrets
from ottla.operator.exposure import Exposure
from ottla.operator.followed import followed_spec, last_followed
from ottla.operator.found import Found
from ottla.operator.kube import Kube, KubeError
from ottla.operator.objects import Object, Ref, condition, going, ref_of
from ottla.operator.parts import Part, carry_out, checked
from ottla.operator.plan import broker_pods, broker_tls, disruption, etcd_pods, links, names, network, services
from ottla.operator.plan.broker_pods import BROKER
from ottla.operator.plan.cluster_status import Findings, cluster_status, not_looked_at, part_condition, refused
from ottla.operator.plan.endpoints import endpoint_slices
from ottla.operator.plan.etcd_tls import with_etcd_tls
from ottla.operator.plan.external import noted_ports
from ottla.operator.plan.observed import restarted_for
from ottla.operator.plan.pool_ids import within_free_ids
from ottla.operator.plan.snapshots import snapshot_objects
from ottla.operator.plan.turns import noted_release
from ottla.operator.queue import Result, Retry, why
from ottla.operator.racks import tell_racks
from ottla.operator.resizing import Resizing
from ottla.operator.rolling import Rolling
from ottla.operator.scaling import noted
from ottla.operator.security import Security
from ottla.operator.spec.cluster import Cluster, Defaults, Etcd, parse_cluster
from ottla.operator.spec.spec_error import SpecError
from ottla.operator.status import INVALID, Condition, Trouble
from ottla.operator.trust_probe import TrustProbe
from ottla.operator.turns import ListClusters, Turns, Upgrades
from ottla.operator.visit import Visit, leaving

logger = logging.getLogger(__name__)

SOON_S = 3.0
WARNED = (
    "InvalidSpec",
    INVALID,
    "NotApplied",
    "ConfigNotApplied",
    "KafkaDoesNotAnswer",
)  # the reasons of the condition Ready for which an Event of type Warning is written
QUIET_S = 30.0  # brokers are asked this often whether a pod may be evicted, because their answers cause no events


class ClusterReconciler:
    """Reconciles Clusters."""

    def __init__(
        self,
        kube: Kube,
        pages: BrokerPages,
        etcd: EtcdKeeper,
        defaults: Defaults,
        *,
        topics_held: Callable[[Ref], Condition | None] = lambda _: None,
        ours: Callable[[Ref], bool] = lambda _: True,
        clusters: ListClusters | None = None,
        again: Callable[[Ref], None] = lambda _: None,
        read: Callable[[Ref, str], None] = lambda key, version: None,
        utc: Callable[[], datetime] = lambda: datetime.now(UTC),
        probe: TrustProbe | None = None,
    ) -> None:
        """`topics_held`: returns the condition about a Cluster's topics that wait for a person, or None; `ours`:
        whether this operator reconciles a Cluster; `clusters`: lists the Clusters that this operator reconciles (if
        None, all Clusters); `again`: puts a Cluster into the queue once more; `read`: called with the version of each
        Cluster that was read."""
        self._ours = ours
        self._kube = kube
        self._etcd = etcd
        self._turns = Turns(clusters or (lambda: kube.list("Cluster")), again)
        self._upgrades = Upgrades(self._turns, defaults)
        self._absences = Absences()
        self._security = Security(kube, probe or TrustProbe())
        self._exposure = Exposure(kube)
        self._sets = BrokerSets(kube)
        self._resizing = Resizing(kube)
        self._rolling = Rolling(kube, pages, self._resizing)
        self._administration = Administration(kube, self._exposure, self._sets)
        self._defaults = defaults
        self._topics_held = topics_held
        self._read = read
        self._utc = utc
        self.parts = self._table()
        self.conditions: dict[Ref, dict[str, bool]] = {}  # by Cluster and type: whether the condition is True
        self.failing: dict[Ref, dict[str, bool]] = {}  # by Cluster and part: whether the part was refused or failed

    def close(self) -> None:
        """Ends all connections to brokers."""
        self._administration.close()

    def _table(self) -> tuple[Part[Visit], ...]:
        """The parts of a reconcile, in their order."""
        etcd, exposure, rolling, brokers = self._etcd, self._exposure, self._rolling, self._administration
        pods_need = ("Certificates", "BrokerCertificates", "BrokerConfig", "BrokerService", "Metadata")
        return checked(
            [
                Part("Certificates", self._certify),
                _applied("FollowedSpec", lambda visit: [followed_spec(visit.cluster, visit.spec)]),
                _applied("BrokerService", lambda visit: [services.brokers(visit.cluster)]),
                _applied("BootstrapService", lambda visit: [services.bootstrap(visit.cluster)]),
                Part("ExternalServices", exposure.keep, plans=exposure.wanted),
                Part("SharedEndpoints", _shared_endpoints, plans=_endpoint_slices, reads=True),
                Part("ListenerAddresses", exposure.look, reads=True),
                Part("BrokerCertificates", self._security.keep),
                Part("CertificatesTold", tell_kubelets),
                Part("ListenerCertificates", tell_refused),
                _applied("ClientConfig", _client_config, ("ListenerAddresses", "BrokerCertificates")),
                _applied(
                    "BrokerConfig", lambda visit: [broker_pods.config_map(visit.cluster)], ("BrokerCertificates",)
                ),
                _applied("NetworkPolicies", _policies),
                _of_etcd("EtcdState", etcd.look, reads=True),
                _of_etcd("EtcdConfig", etcd.configure, ("Certificates",), _etcd_config),
                _applied("EtcdService", _if_etcd(lambda cluster, _: [etcd_pods.member_service(cluster)])),
                _applied("EtcdBudget", _if_etcd(lambda cluster, _: [disruption.etcd(cluster)])),
                _of_etcd("EtcdMembers", etcd.keep_set, ("Certificates", "EtcdConfig", "EtcdService")),
                _applied("Snapshots", _if_etcd(snapshot_objects)),
                _of_etcd("SnapshotTimes", etcd.look_at_snapshots, reads=True),
                _of_etcd("EtcdRepair", etcd.mend, ("EtcdConfig",)),
                _of_etcd("EtcdVolumes", etcd.tidy, ("EtcdConfig",)),
                _of_etcd("EtcdUpkeep", etcd.upkeep, ("Certificates", "EtcdState")),
                _of_etcd("Metadata", etcd.form),
                Part("NewVolumes", partial(hold_new_volumes, self._kube), reads=True),
                Part("Brokers", self._sets.keep, (*pods_need, "NewVolumes")),
                Part("Volumes", partial(look_at_volumes, self._kube), reads=True),
                _applied("Controllers", _controllers, pods_need),
                _applied("ControllerBudget", _controller_budget),
                Part("Racks", self._tell_racks),
                Part("BrokerStates", rolling.look, reads=True),
                Part("Turn", self._upgrades.take_turn, ("BrokerStates",), reads=True),
                _of_etcd("EtcdRoll", etcd.roll, ("Certificates", "Turn")),
                Part("ControllerRoll", rolling.roll_controllers, ("Turn",)),
                Part("RollDecision", rolling.decide, ("BrokerStates",)),
                _applied("BrokerBudget", rolling.budget),  # without a decision, the budget allows no eviction
                Part("Resizing", self._resizing.carry_on, ("RollDecision", "Turn")),
                Part("Roll", rolling.restart_one, ("RollDecision", "Turn")),
                Part("ControllersRetired", self._sets.retire_controllers, ("Roll",)),
                Part("KafkaAnswers", asking(brokers.answer), ("BrokerStates",), reads=True),
                Part("Settings", asking(brokers.settings), ("KafkaAnswers",)),
                Part("Overrides", asking(brokers.overrides), ("KafkaAnswers",)),
                Part("AddressesTold", asking(brokers.addresses), ("KafkaAnswers", "ListenerAddresses")),
                Part("Scaling", asking(brokers.scale), ("KafkaAnswers",)),
                Part("FreeIds", asking(brokers.free_ids), ("KafkaAnswers",)),
                Part("Balance", asking(brokers.balance), ("KafkaAnswers", "Scaling", "RollDecision")),
                Part("EmptiedVolumes", asking(brokers.empty_volumes), ("KafkaAnswers",)),
                Part("LostVolumes", asking(brokers.replace_lost), ("KafkaAnswers",)),
                Part("Pruning", self._prune),
            ]
        )

    async def reconcile(self, key: Ref) -> Result:
        """Carries out all parts for one Cluster, and writes its status."""
        resource = await self._kube.get("Cluster", *key) if self._ours(key) else None
        if resource is None or going(resource):
            await self._etcd.forget(key)
            self._read(key, "")
            self.conditions.pop(key, None)
            self.failing.pop(key, None)
            self._turns.ended(key)
            self._absences.forget(key)
            self._administration.forget(key)
            self._exposure.forget(key)
            # Kubernetes deletes the Cluster's objects by their owner references; that needs no operator.
            return Result(gone=True)
        self._read(key, resource["metadata"]["resourceVersion"])
        now = self._utc()
        try:
            cluster, spec, refusal = await self._meant(resource)
            if cluster is None:
                await self._write(resource, refused(resource, refusal, now), [])
                return Result()
            visit = await self._visit(resource, cluster, spec, refusal, now)
        except Exception as error:
            # Without the objects no part can be done, and the status says so.
            with suppress(Retry):
                await self._write(resource, not_looked_at(resource, why(error), now), [])
            raise
        return await self._carried_out(visit)

    async def _visit(self, resource: Object, cluster: Cluster, spec: Object, refusal: str, now: datetime) -> Visit:
        found = await Found.look(self._kube, cluster)
        status = resource.get("status") or {}
        sets, pods = found.all("StatefulSet", BROKER), found.all("Pod", BROKER)
        claims: dict[str, Object] = {}
        with suppress(KubeError):  # the part Brokers reports such an error, and makes no pods
            claims = found.by_name("PersistentVolumeClaim", BROKER)
        cluster, held_back = within_free_ids(cluster, sets, pods, claims)
        standing = links.standing(found.all("StatefulSet"), found.all("Pod"))
        aim = links.aim(cluster.internal_tls, standing)
        cluster = replace(cluster, links=links.next_stage(aim, standing))
        volumes: list[Object] = []
        with suppress(KubeError):  # while claims can't be read, no StatefulSet is applied
            volumes = found.all("PersistentVolumeClaim")
        cluster, misfit = with_etcd_tls(cluster, found.all("StatefulSet"), found.all("Pod"), volumes)
        findings = Findings(
            refusal=refusal or misfit,
            topics_held=self._topics_held(cluster.ref),
            scaling=noted(cluster, status),
            node_ports=noted_ports(status),
            operator=noted_release(status),
            strays=found.strays,
            held_back=held_back,
            encrypted_links=standing.encrypted_everywhere and cluster.links.encrypted_open,
            links_change="" if cluster.paused else links.progress(aim, cluster.links, standing),
        )

        async def tell(reason: str, message: str) -> None:
            logger.info("cluster %s: %s: %s", cluster.ref, reason, message)
            await self._kube.event(resource, reason, message, now)

        gone = leaving(cluster, found)
        restart = cluster.restart or restarted_for(found.all("StatefulSet"), found.all("Pod"))
        cluster = replace(cluster, leaving=len(gone), restart=restart)
        visit = Visit(resource, cluster, spec, found, findings, now, tell, gone)
        visit.existed = visit.pod_names()
        visit.encrypted_somewhere = any(stage.encrypted_open for stage in (cluster.links, *standing.known))
        if broker_tls.uses_tls(cluster) or visit.encrypted_somewhere:
            visit.awaited_keys = "the Secrets of the brokers' certificates to be read"
        visit.absent_since = self._absences.look(cluster.ref, found.all("StatefulSet"), found.all("Pod"), now)
        with suppress(KubeError):  # the part FollowedSpec reports such an error
            visit.followed = found.get("ConfigMap", names.followed(cluster.name))
        return visit

    async def _carried_out(self, visit: Visit) -> Result:
        """Does all parts and writes the status. Returns when to reconcile again."""
        key, turn = visit.cluster.ref, visit.findings.operator.turn
        try:
            result = await self._done(visit)
            turn = visit.findings.operator.turn
            return result
        finally:
            if not turn:  # as the written status says or, if it couldn't be written, the status before
                self._turns.ended(key)

    async def _done(self, visit: Visit) -> Result:
        troubles = visit.findings.troubles = await carry_out(self.parts, visit, paused=visit.cluster.paused)
        for reason, message in visit.found.told():
            await visit.tell(reason, message)
        key, before = visit.cluster.ref, visit.resource.get("status") or {}
        failed = {trouble.part for trouble in troubles if trouble.failed}
        self.failing[key] = {part.name: part.name in failed for part in self.parts}
        try:
            status = cluster_status(visit.cluster, visit.findings, before, visit.now)
        except Exception as error:
            await self._write(visit.resource, not_looked_at(visit.resource, why(error), visit.now), [])
            raise
        await self._write(visit.resource, status, troubles)
        return Result(SOON_S if visit.busy else QUIET_S, failure=visit.findings.failure)

    async def _meant(self, resource: Object) -> tuple[Cluster | None, Object, str]:
        """Returns the Cluster to bring about, its spec, and an empty text. If the operator can't follow this spec,
        returns the Cluster of the last spec that the operator could follow, that older spec, and the reason. The
        Cluster is None where there was no such spec.

        So a mistake in a spec doesn't keep the operator from repairing the cluster.
        """
        spec = resource.get("spec") or {}
        try:
            return parse_cluster(resource, self._defaults), spec, ""
        except SpecError as error:
            refusal = str(error)
        except Exception as error:  # after any error, the last spec that could be followed is still carried out
            refusal = f"the operator can't read the spec ({type(error).__name__}): {why(error)}"
            logger.debug("cluster %s: %s", ref_of(resource), refusal, exc_info=error)
        before = None if spec.get("paused") else await last_followed(self._kube, resource, self._defaults)
        return (*before, refusal) if before is not None else (None, spec, refusal)

    async def _certify(self, visit: Visit) -> None:
        """Makes the certificates of an etcd that the operator runs, or reads the Secrets for another etcd."""
        if isinstance(etcd := visit.cluster.metadata, Etcd):
            await self._etcd.certify(visit, etcd)
        else:
            visit.cluster = await with_secrets(self._kube, visit.cluster, etcd)

    async def _tell_racks(self, visit: Visit) -> None:
        visit.findings.racks_wait_for = await tell_racks(self._kube, visit.cluster, visit.found)

    async def _prune(self, visit: Visit) -> None:
        """Deletes the Cluster's objects that no part plans. If a part can't make its plan, nothing is deleted, and this
        part fails."""
        wanted = [item for part in self.parts for item in part.plans(visit)]
        await visit.found.prune((item["kind"], item["metadata"]["name"]) for item in wanted)

    async def _write(self, resource: Object, status: Object, troubles: list[Trouble]) -> None:
        """Writes the status if it changed, and Events about changed conditions. A needless write would cause a new
        reconcile."""
        before = resource.get("status") or {}
        self.conditions[ref_of(resource)] = {each["type"]: each["status"] == "True" for each in status["conditions"]}
        if status == before:
            return
        try:
            await self._kube.write_status(resource, status)
        except KubeError as error:
            if error.status != 404:  # 404: the Cluster was deleted meanwhile
                raise
        now = self._utc()
        ready = condition(status, "Ready")
        if _is_news(ready, condition(before, "Ready")) and ready["reason"] in WARNED:
            await self._kube.event(resource, ready["reason"], ready["message"], now, warning=True)
        for kind in ("PodsOwned", "KeysLost"):
            said = condition(status, kind)
            if said and _is_news(said, condition(before, kind)):
                await self._kube.event(resource, said["reason"], said["message"], now, warning=True)
        for trouble in troubles:
            kind = part_condition(trouble.part)
            if trouble.failed and _is_news(condition(status, kind), condition(before, kind)):
                unexpected = trouble.error if trouble.reason == "Unexpected" else None
                logger.warning("cluster %s: %s: %s", ref_of(resource), kind, trouble.message, exc_info=unexpected)
                await self._kube.event(resource, f"{trouble.part}Failed", trouble.message, now, warning=True)


def _is_news(said: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    return any(said.get(part) != before.get(part) for part in ("reason", "message"))


# ---- rows of the table


def _applied(name: str, plans: Callable[[Visit], Iterable[Object]], needs: tuple[str, ...] = ()) -> Part[Visit]:
    """A part that only applies the objects that it plans."""

    async def apply(visit: Visit) -> None:
        await visit.found.apply_each(plans(visit))

    return Part(name, apply, needs, plans)


def _of_etcd(
    name: str,
    does: Callable[[Visit, Etcd], Awaitable[None]],
    needs: tuple[str, ...] = (),
    plans: Callable[[Visit], Iterable[Object]] = lambda _: (),
    *,
    reads: bool = False,
) -> Part[Visit]:
    """A part that does something only if the operator runs the Cluster's etcd."""

    async def part(visit: Visit) -> None:
        if isinstance(etcd := visit.cluster.metadata, Etcd):
            await does(visit, etcd)

    return Part(name, part, needs, plans, reads)


def _if_etcd(plans: Callable[[Cluster, Etcd], Iterable[Object]]) -> Callable[[Visit], Iterable[Object]]:
    def planned(visit: Visit) -> Iterable[Object]:
        etcd = visit.cluster.metadata
        return plans(visit.cluster, etcd) if isinstance(etcd, Etcd) else ()

    return planned


def _etcd_config(visit: Visit) -> Iterable[Object]:
    """Plans the ConfigMap of etcd's members, so that it isn't pruned. The plan lacks the ConfigMap's data, which follow
    from etcd's list of members."""
    return [etcd_pods.config_map(visit.cluster, {})] if isinstance(visit.cluster.metadata, Etcd) else ()


def _client_config(visit: Visit) -> Iterable[Object]:
    return [services.client_config(visit.cluster, visit.findings.bootstrap, visit.trust)]


def _endpoint_slices(visit: Visit) -> Iterable[Object]:
    return endpoint_slices(visit.cluster, visit.broker_pods())


async def _shared_endpoints(visit: Visit) -> None:
    """Applies the EndpointSlices, also while the Cluster is paused. Otherwise clients couldn't reach a pod that was
    restarted and has another IP address."""
    await visit.found.apply_each(_endpoint_slices(visit))


def _policies(visit: Visit) -> Iterable[Object]:
    rules = visit.cluster.network_rules
    return network.policies(visit.cluster, rules) if rules is not None else ()


def _controllers(visit: Visit) -> Iterable[Object]:
    cluster = visit.cluster
    return [broker_pods.controller_set(cluster)] if cluster.controllers.replicas else ()


def _controller_budget(visit: Visit) -> Iterable[Object]:
    return [disruption.controllers(visit.cluster)] if visit.cluster.controllers.replicas else ()
