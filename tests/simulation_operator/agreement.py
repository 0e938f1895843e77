"""Checks whether a Cluster has converged to its spec, and whether its status is true. The expected state is computed
from the spec, but not by the operator's code.
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla.operator.objects import Object, condition, going
from ottla.operator.plan.names import RESTARTED_FOR
from ottla.operator.plan.topic_owner import read_mark
from ottla.operator.spec.cluster import RESTART
from tests.simulation_operator.brokers import Brokers
from tests.simulation_operator.directories import CORDONED, templates, volumes
from tests.simulation_operator.kubernetes import ApiServer
from tests.simulation_operator.person import DYNAMIC, NAME, STATIC, Person


class Agreement:
    """Compares a world with the spec of its Cluster."""

    def __init__(self, server: ApiServer, brokers: Brokers, person: Person) -> None:
        self._server = server
        self._brokers = brokers
        self._person = person
        self._ports: dict[tuple[str, str], int] = {}  # (the Cluster's uid, a Service) → the Service's first node port

    def ids(self) -> dict[int, str]:
        """The ids of the wanted brokers, and the names of their pods."""
        brokers = self._person.spec["brokers"]
        pools = brokers.get("pools") or [{"name": "broker", "firstId": 0, "replicas": brokers["replicas"]}]
        return {
            broker: f"{NAME}-{pool['name']}-{broker}"
            for pool in pools
            for broker in range(pool["firstId"], pool["firstId"] + pool["replicas"])
        }

    def volumes(self) -> dict[int, str]:
        """The sizes of each broker's wanted volumes, by the volumes' ids."""
        storage = self._person.spec["brokers"]["storage"]
        return {each.get("id", 0): each["size"] for each in storage.get("volumes", [storage])}

    def differences(self) -> list[str]:
        """A sentence for each difference from the spec; empty once the Cluster has converged."""
        return [*self._pods(), *self._volumes(), *self._objects(), *self._overrides(), *self._topics(), *self._status()]

    def served(self) -> frozenset[str]:
        """The brokers' ready pods that are this Cluster's, or were orphaned because their StatefulSet is recreated."""
        ours = {
            item["metadata"]["uid"]
            for item in self._server.all("StatefulSet")
            if not (owners := item["metadata"].get("ownerReferences")) or owners[0]["uid"] == self._person.uid
        }
        return frozenset(
            pod["metadata"]["name"]
            for pod in self._server.all("Pod", "broker")
            if pod["metadata"]["name"] not in self._person.strays and self._server.serves(pod["metadata"]["name"])
            if not (owners := pod["metadata"].get("ownerReferences")) or owners[0]["uid"] in ours
        )

    def status_lies(self, served: frozenset[str]) -> Iterator[str]:
        """The false statements in a status that was written just now. `served` are the pods that served before the
        write."""
        cluster = self._person.cluster
        assert cluster is not None
        status = cluster.get("status") or {}
        ready = condition(status, "Ready")
        if ready.get("reason") == "InvalidSpec" or "brokers" not in status:
            return
        wanted = self.ids()
        true = sum(pod in served for pod in wanted.values())
        if status["brokers"]["ready"] != true:
            yield f"the status says {status['brokers']['ready']} brokers are ready, and {true} are"
        if ready.get("status") == "True" and true < len(wanted):
            yield f"Ready is True with {true} of {len(wanted)} brokers"
        if ready.get("status") == "True" and self._server.refusals and not self._person.spec.get("paused"):
            refused = {request.split(" ", 1)[1] for request in self._server.refusals}
            if any(request in refused for request in ("Service k-bootstrap", "ConfigMap k-client")):
                yield f"Ready is True though {', '.join(sorted(refused))} is refused"
        if self._person.spec.get("paused") and condition(status, "Rolling").get("status") != "False":
            yield "Rolling isn't False though the Cluster is paused"

    def budget_lies(self) -> Iterator[str]:
        """Evictions that the PodDisruptionBudget wrongly allows. Called after a reconcile in which no fault occurred
        other than refused objects.
        """
        budget = self._server.get_now("PodDisruptionBudget", f"{NAME}-brokers")
        followed = self._server.get_now("ConfigMap", f"{NAME}-followed")
        if budget is None or followed is None or self._person.spec.get("paused"):
            return
        if followed["metadata"].get("ownerReferences", [{}])[0].get("uid") != self._person.uid:
            return  # the Cluster has never had a valid spec
        if budget["metadata"].get("ownerReferences", [{"uid": self._person.uid}])[0].get("uid") != self._person.uid:
            return  # the former Cluster's budget, which is deleted with it and with the pods that it selects
        allowed = budget["spec"]["maxUnavailable"]
        if allowed and (blocking := self._brokers.blocking & self._brokers.running().keys()):
            yield f"the budget allows {allowed} eviction though broker {sorted(blocking)} says no"

    def _pods(self) -> Iterator[str]:
        spec, defaults = self._person.spec, self._person.defaults
        cluster = self._person.cluster
        assert cluster is not None
        image = spec.get("image") or defaults.image
        wanted = dict.fromkeys(self.ids().values(), image)
        wanted |= {f"{NAME}-etcd-{n}": defaults.etcd_image for n in range(spec["metadata"]["etcd"]["members"])}
        wanted |= {f"{NAME}-controller-{n}": image for n in range(spec.get("controllers", {}).get("replicas", 0))}
        there = {pod["metadata"]["name"]: pod for pod in self._server.all("Pod")}
        restart = (cluster["metadata"].get("annotations") or {}).get(RESTART)
        template = (spec["brokers"].get("template") or {}).get("annotations") or {}
        for name in sorted(there.keys() - wanted.keys() - self._person.strays):
            yield f"pod {name} is there"
        for name in sorted(self._person.strays - there.keys()):
            yield f"stray pod {name} is gone"
        for name, its_image in sorted(wanted.items()):
            pod = there.get(name)
            if pod is None or going(pod) or not self._server.serves(name):
                yield f"pod {name} doesn't serve"
                continue
            if (runs := pod["spec"]["containers"][0]["image"]) != its_image:
                yield f"pod {name} has {runs}, not {its_image}"
            container, told = pod["spec"]["containers"][0], pod["status"]["containerStatuses"][0]
            resources = spec["brokers"].get("resources") if "broker" in name else None
            if resources and not resources == container["resources"] == told["resources"]:
                yield f"pod {name} is to have {resources}, and has {told['resources']}"
            annotations = pod["metadata"].get("annotations") or {}
            if restart and "etcd" not in name and annotations.get(RESTARTED_FOR) != restart:
                yield f"pod {name} wasn't restarted as asked for"
            if RESTART in annotations and RESTART not in template:
                yield f"pod {name} asks for a restart"

    def _volumes(self) -> Iterator[str]:
        """Differences in volumes: each broker is to have its wanted volumes, which are large enough, and to place
        replicas on all of them.
        """
        wanted = self.volumes()
        for broker, name in self.ids().items():
            pod = self._server.get_now("Pod", name)
            if pod is not None and (has := volumes(pod)) != wanted.keys():
                yield f"pod {name} has the volumes {sorted(has)}, not {sorted(wanted)}"
            for volume, size in wanted.items():
                claim = self._server.get_now("PersistentVolumeClaim", f"data-{volume}-{name}")
                if claim is None or int(_size(claim)[:-2]) < int(size[:-2]):
                    yield f"volume {volume} of {name} is to have {size}, and has {claim and _size(claim)}"
            if self._brokers.directories.cordoned(broker):
                yield f"broker {broker} gets no new replicas on some of its volumes"

    def _objects(self) -> Iterator[str]:
        spec = self._person.spec
        services = {f"{NAME}-brokers", f"{NAME}-bootstrap", f"{NAME}-etcd"}
        outside = [each["name"] for each in spec.get("listeners", ()) if each["type"] != "Internal"]
        services |= {f"{NAME}-bootstrap-{name}" for name in outside}
        services |= {f"{pod}-{name}" for name in outside for pod in self.ids().values()}
        there = {item["metadata"]["name"]: item for item in self._server.all("Service")}
        # A Service without an owner was left by `kubectl delete --cascade=orphan` of the former Cluster. The operator
        # adopts such a Service if the new Cluster wants it. Otherwise the Service stays: `kubectl expose` makes
        # Services with the same labels and without an owner, too, and those aren't the operator's to delete.
        left = {name for name, item in there.items() if not item["metadata"].get("ownerReferences")} - services
        if there.keys() - left != services:
            yield f"Services: {sorted((there.keys() - left) ^ services)}"
        for name, item in sorted(there.items()):
            for port in item["spec"]["ports"]:
                if "nodePort" in port and "bootstrap" not in name:
                    first = self._ports.setdefault((self._person.uid, name), port["nodePort"])
                    if port["nodePort"] != first:
                        yield f"Service {name} has the node port {port['nodePort']}, and had {first}"
        budget = self._server.get_now("PodDisruptionBudget", f"{NAME}-brokers")
        if budget is None or budget["spec"]["maxUnavailable"] != 1:
            yield "the brokers' budget allows no eviction"
        for item in self._server.all("StatefulSet"):
            if item["metadata"]["name"].startswith(f"{NAME}-etcd"):
                continue
            given, wanted = templates(item), self.volumes()
            # A StatefulSet may give larger volumes than wanted: the former Cluster may have grown them.
            if given and (given.keys() != wanted.keys() or any(_gi(given[each]) < _gi(wanted[each]) for each in given)):
                yield f"StatefulSet {item['metadata']['name']} gives the volumes {given}, not {wanted}"
        if self._brokers.drained():
            yield f"brokers {sorted(self._brokers.drained())} are drained"
        wanted = {k: str(v) for k, v in spec.get("config", {}).items() if k == "log.retention.ms"}
        if {k: v for k, v in self._brokers.settings.items() if k == "log.retention.ms"} != wanted:
            yield "the dynamic settings aren't in force"

    def _overrides(self) -> Iterator[str]:
        """Differences in the settings of single brokers: each broker is to have the settings of the spec and its
        addresses, and no others. The status is to say so.
        """
        overrides = {each["broker"]: each["config"] for each in self._person.spec.get("configOverrides", ())}
        config = self._server.get_now("ConfigMap", f"{NAME}-config")
        files = config["data"] if config is not None else {}
        for broker in self.ids():
            wanted = overrides.get(broker, {})
            own = {
                name: value
                for name, value in self._brokers.own.get(broker, {}).items()
                if name not in ("ottla.listener.addresses", CORDONED)
            }
            if own != {name: value for name, value in wanted.items() if name == DYNAMIC}:
                yield f"broker {broker} has {own} of its own, and was given {wanted}"
            line = f"{STATIC}={wanted[STATIC]}\n" if STATIC in wanted else ""
            if files.get(f"broker-{broker}.properties", "") != line:
                yield f"the file of broker {broker} isn't {line!r}"
            if self._brokers.started_with.get(broker) != self._brokers.files(broker):
                yield f"broker {broker} wasn't started with its files"
        status = (self._person.cluster or {}).get("status") or {}
        there = {each["broker"]: each["applied"] for each in status.get("configOverrides", ())}
        if there != {broker: broker in self.ids() for broker in overrides}:
            yield f"the status says {there} of the settings of single brokers {sorted(overrides)}"
        told = condition(status, "OverridesApplied")
        absent = overrides.keys() - self.ids().keys()
        if bool(told) != bool(overrides) or (told and told["status"] != ("False" if absent else "True")):
            yield f"OverridesApplied is {told}"

    def _topics(self) -> Iterator[str]:
        uids = set()
        for item in self._server.all("Topic"):
            name, uid = item["metadata"]["name"], item["metadata"]["uid"]
            uids.add(uid)
            told = condition(item.get("status"), "Ready")
            if told.get("reason") == "NotSupported":
                continue  # the Topic asks for fewer partitions than a kept topic has
            topic = self._brokers.topics.get(name)
            owner = read_mark(topic.owner) if topic is not None else None
            if topic is None or owner is None or (owner.uid, owner.cluster_uid) != (uid, self._person.uid):
                yield f"topic {name} doesn't follow its Topic: {owner}"
            elif len(topic.partitions) < item["spec"]["partitions"]:
                yield f"topic {name} has too few partitions"
            if told.get("status") != "True":
                yield f"Topic {name} isn't Ready: {told.get('reason')}"
        held = condition((self._person.cluster or {}).get("status"), "TopicsHeld")
        orphans = [
            topic.name
            for topic in self._brokers.topics.values()
            if (owner := read_mark(topic.owner)) is not None and owner.uid not in uids
            if self._server.get_now("Topic", topic.name) is None
        ]
        for name in orphans:
            if name not in held.get("message", ""):
                yield f"topic {name} has lost its Topic resource, and the Cluster's status doesn't name it"
        if held and not orphans:
            yield "the status says that topics are held, and none is"

    def _status(self) -> Iterator[str]:
        cluster = self._person.cluster
        assert cluster is not None
        status: Object = cluster.get("status") or {}
        wanted = self.ids()
        image = self._person.spec.get("image") or self._person.defaults.image
        said = {
            "brokers": (status.get("brokers") or {}).get("ready"),
            "generation": status.get("observedGeneration"),
            "version": status.get("version"),
        }
        true = {
            "brokers": len(wanted),
            "generation": cluster["metadata"]["generation"],
            "version": image.partition(":")[2],
        }
        if said != true:
            yield f"the status says {said}, and it is {true}"
        for kind, holds in {
            "Ready": "True",
            "Rolling": "False",
            "Progressing": "False",
            "Reassigning": "False",
            "ConfigApplied": "True",
            "MetadataReady": "True",
            "KafkaAnswers": "True",
            "PartitionsLed": "True",
            "StorageReady": "True",
        }.items():
            if (found := condition(status, kind)).get("status") != holds:
                yield f"{kind} is {found.get('status')}: {found.get('message')}"
        for each in status.get("conditions") or ():
            if each["type"].endswith("Reconciled") or each["type"] == "Paused":
                yield f"{each['type']} is there: {each['message']}"


def _size(claim: Object) -> str:
    return str(claim["spec"]["resources"]["requests"]["storage"])


def _gi(size: str) -> int:
    return int(size.removesuffix("Gi"))
