"""The named actions of people on a Cluster, its Topics and other objects, and accidents of pods.

An action that isn't possible now does nothing and isn't counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from operator import itemgetter
from random import Random
from typing import Any

from ottla.operator.kube import KubeError
from ottla.operator.objects import Object, going
from ottla.operator.orphaned_topics import DEFINITION
from ottla.operator.plan.names import COMPONENT, INSTANCE, MANAGED_BY
from ottla.operator.spec.cluster import RESTART, Defaults
from ottla.operator.status import Condition, conditions
from tests.simulation_operator.brokers import Brokers
from tests.simulation_operator.invariants import Wishes
from tests.simulation_operator.kubernetes import NAMESPACE, ApiServer, Key
from tests.unit.operator.kubernetes_world import copied

NAME = "k"
BROKERS_MAX = 5
TOPICS_MAX = 6
REPLICAS_MAX = 2
VOLUMES_MAX = 3  # the most volumes of a broker
STATIC, DYNAMIC = "socket.listen.backlog.size", "log.retention.ms"  # settings that single brokers may have
ENDED = 0.3  # at each action, the probability of each of ENDINGS
BACKED_UP = 0.3  # at each action, the probability of a backup of Kubernetes
ENDINGS = ("resumed", "spec put right", "rights given back", "definition of Topics applied", "Topics applied again")
INVALID = ({"nope": 1}, {"node.id": "3"}, {"num.partitions": "many"})
RESOURCES: tuple[Object, ...] = (
    {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}},
    {"requests": {"cpu": "200m", "memory": "256Mi"}, "limits": {"memory": "1024Mi"}},
    {"requests": {"cpu": "200m", "memory": "512Mi"}, "limits": {"memory": "1024Mi", "cpu": "1"}},
    {"requests": {"cpu": "1", "memory": "1024Mi"}, "limits": {"memory": "1024Mi", "cpu": "1"}},  # QoS Guaranteed
)
NODE_SAYS = ("Infeasible", "Deferred", "InProgress")
REFUSABLE = ("Service k-bootstrap", "ConfigMap k-client", "PodDisruptionBudget k-etcd", "NetworkPolicy k-brokers")
DRIFTS = (
    ("Service", "k-bootstrap"),
    ("Service", "k-brokers"),
    ("ConfigMap", "k-client"),
    ("ConfigMap", "k-config"),
    ("ConfigMap", "k-followed"),
    ("PodDisruptionBudget", "k-brokers"),
)


class Person:
    """The people and programs that act on the world, except the operator."""

    def __init__(
        self, random: Random, server: ApiServer, brokers: Brokers, wishes: Wishes, counts: Counter[str]
    ) -> None:
        self._random = random
        self._server = server
        self._brokers = brokers
        self._wishes = wishes
        self._counts = counts
        self._versions = 1
        self.defaults = Defaults("ottla:1", "etcd:1", "1")
        self.image = ""  # the last good image that was asked for
        self.topics: dict[str, Object] = {}  # the specs of the wanted Topics
        self.strays: set[str] = set()
        self.operator_upgraded = False
        self.restored = False  # whether Kubernetes was restored, and no watch has noticed that yet
        self._backup: tuple[tuple[str, str], dict[Key, Object]] | None = None  # `_whose()` and the Topics at the backup
        self.actions: dict[str, Callable[[], bool]] = {
            "image": self.change_image,
            "image that can't be had": self.break_image,
            "static setting": lambda: self.configure("num.partitions"),
            "dynamic setting": lambda: self.configure("log.retention.ms"),
            "settings of one broker": self.override,
            "settings of one broker taken back": self.override_no_more,
            "setting given to a broker by hand": self.configure_by_hand,
            "resources changed": self.change_resources,
            "node takes no resize": self.fill_node,
            "scaled": self.scale,
            "restart of all asked for": self.restart,
            "restart of a pod asked for": self.restart_pod,
            "restart in the pods' template": self.restart_in_template,
            "paused": self.pause,
            "resumed": self.resume,
            "spec that is invalid": self.spoil,
            "spec put right": self.correct,
            "topic added": self.add_topic,
            "topic deleted": self.delete_topic,
            "topic deleted and made again": self.remake_topic,
            "topic made again under an older operator": self.remake_topic_before_an_upgrade,
            "topic grown": self.grow_topic,
            "Cluster made again, Topics still there": lambda: self.remake_cluster(topics="kept"),
            "Cluster made again before its Topics": lambda: self.remake_cluster(topics="later"),
            "Cluster made again after its Topics": lambda: self.remake_cluster(topics="first"),
            "Cluster made again over orphans": lambda: self.remake_cluster(topics="kept", orphan=True),
            "Cluster made again over orphans before its Topics": lambda: self.remake_cluster(
                topics="later", orphan=True
            ),
            "Cluster made again with fewer brokers": lambda: self.remake_cluster(topics="kept", fewer=True),
            "Topics applied again": self.apply_topics,
            "Kubernetes restored, its Topics at least": self.restore,
            "definition of Topics deleted": self.undefine,
            "definition of Topics applied": self.define,
            "stray pod": self.stray,
            "object refused": self.refuse,
            "object deleted by hand": self.drift,
            "operator upgraded": self.upgrade,
            "volumes grown": self.grow_volumes,
            "volume added": self.add_volume,
            "volume taken": self.take_volume,
            "rights taken": self.take_rights,
            "rights given back": self.give_rights,
            "pod crashed": self.crash,
            "broker says no": self.block,
        }

    def act(self) -> None:
        """Does one random action, and sometimes ends a state that blocks others, such as a pause."""
        if self._server.defined and self._random.random() < BACKED_UP:
            self._backup = self._whose(), self._server.topics_now()
        names = [self._random.choice(sorted(self.actions))]
        names += [name for name in ENDINGS if self._random.random() < ENDED]
        for name in names:
            if self.actions[name]():
                self._counts[f"done: {name}"] += 1

    def heal(self) -> None:
        """Ends all states that keep a Cluster from converging."""
        self.give_rights()
        self._server.refusals.clear()
        self._server.taken_ports.clear()
        self._server.node_says.clear()
        self._brokers.blocking.clear()
        self.define()
        self.apply_topics()
        self.resume()
        self.correct()
        self.bring_back()
        if self.cluster is not None and self.cluster["spec"].get("image") in self._server.bad_images:
            self.change_image()

    # ---- the Cluster

    @property
    def cluster(self) -> Object | None:
        """The Cluster."""
        return self._server.get_now("Cluster", NAME)

    @property
    def uid(self) -> str:
        """The Cluster's uid; empty while there is no Cluster."""
        return self.cluster["metadata"]["uid"] if self.cluster is not None else ""

    def edit(self, **changes: Any) -> None:
        """Changes fields of the spec; None removes a field."""

        def change(spec: Object) -> None:
            for name, value in changes.items():
                if value is None:
                    spec.pop(name, None)
                else:
                    spec[name] = value

        self._server.edit("Cluster", NAME, change)

    @property
    def spec(self) -> Object:
        """A copy of the Cluster's spec."""
        assert self.cluster is not None
        return copied(self.cluster["spec"])

    def change_image(self) -> bool:
        self._versions += 1
        self.image = f"ottla:{self._versions}"
        self.edit(image=self.image)
        return True

    def break_image(self) -> bool:
        self._versions += 1
        bad = f"ottla:bad-{self._versions}"
        self._server.bad_images.add(bad)
        self.edit(image=bad)
        return True

    def configure(self, name: str) -> bool:
        self._versions += 1
        self.edit(config={**self.spec.get("config", {}), name: str(self._versions)})
        return True

    def override(self) -> bool:
        """Gives settings to a single broker, which may not exist."""
        self._versions += 1
        broker = self._random.randrange(BROKERS_MAX)
        names = self._random.choice(([STATIC], [DYNAMIC], [STATIC, DYNAMIC]))
        others = [each for each in self.spec.get("configOverrides", ()) if each["broker"] != broker]
        own = {"broker": broker, "config": dict.fromkeys(names, str(self._versions))}
        self.edit(configOverrides=[*others, own])
        return True

    def override_no_more(self) -> bool:
        if not (overrides := self.spec.get("configOverrides")):
            return False
        overrides.remove(self._random.choice(overrides))
        self.edit(configOverrides=overrides or None)
        return True

    def configure_by_hand(self) -> bool:
        if not (running := sorted(self._brokers.running())):
            return False
        self._versions += 1
        own = self._brokers.own.setdefault(self._random.choice(running), {})
        own[self._random.choice((DYNAMIC, "log.roll.ms"))] = str(self._versions)
        return True

    def change_resources(self) -> bool:
        self.edit(brokers={**self.spec["brokers"], "resources": copied(self._random.choice(RESOURCES))})
        return True

    def fill_node(self) -> bool:
        """Lets the node of one pod refuse or delay a resize."""
        if not (pods := sorted(self._server.pods("broker"))):
            return False
        self._server.node_says = {self._random.choice(pods): self._random.choice(NODE_SAYS)}
        return True

    def scale(self) -> bool:
        brokers = self.spec["brokers"]
        pools = brokers.get("pools") or [brokers]
        ours = [
            item
            for item in self._server.all("StatefulSet")
            if any(owner["uid"] == self.uid for owner in item["metadata"].get("ownerReferences") or ())
        ]
        if len(ours) < len(pools) + 1:
            return False  # the operator doesn't know yet which brokers a recreated Cluster had
        pool = self._random.choice(pools)
        if sum(each["replicas"] for each in pools) < 2:
            return False  # a Cluster with a single broker isn't scaled
        others = sum(each["replicas"] for each in pools) - pool["replicas"]
        pool["replicas"] = self._random.randint(max(2 - others, 0 if others else 1), BROKERS_MAX - others)
        if "name" in pool and others >= REPLICAS_MAX and (scaled := self._counts["done: scaled"]) % 2 == 0:
            pool["name"] = f"p{scaled}"  # another pool, with the ids of existing brokers
            self._counts["pool given another one's ids"] += 1
        sets = {f"{NAME}-{each.get('name', 'broker')}" for each in _pools(self.spec)}
        if {pod.rpartition("-")[0] for pod in self._server.made("broker")} - sets:
            return False  # while a removed pool is drained, all other brokers may be needed for its replicas
        self.edit(brokers=brokers)
        return True

    def restart(self) -> bool:
        assert self.cluster is not None
        self._versions += 1
        annotations = self.cluster["metadata"].setdefault("annotations", {})
        annotations[RESTART] = str(self._versions)
        self.edit()
        return True

    def restart_pod(self) -> bool:
        pods = self._server.pods("broker")
        if not pods:
            return False
        self.ask_for_restart(self._random.choice(sorted(pods)), "now")
        return True

    def ask_for_restart(self, pod: str, text: str = "today") -> None:
        """Asks for a restart by an annotation of the pod. If the pods' template has the annotation with the same
        `text`, the annotation has no effect.
        """
        self._server.pods("broker")[pod]["metadata"].setdefault("annotations", {})[RESTART] = text

    def restart_in_template(self) -> bool:
        brokers = self.spec["brokers"]
        brokers["template"] = {"annotations": {RESTART: "now"}}
        self.edit(brokers=brokers)
        return True

    def pause(self) -> bool:
        self.edit(paused=True)
        return True

    def resume(self) -> bool:
        if not self.spec.get("paused"):
            return False
        self.edit(paused=None)
        return True

    def spoil(self) -> bool:
        self.edit(config={**self.spec.get("config", {}), **self._random.choice(INVALID)})
        return True

    def correct(self) -> bool:
        config = self.spec.get("config", {})
        right = {name: value for name, value in config.items() if not any(bad.get(name) == value for bad in INVALID)}
        if right == config:
            return False
        self.edit(config=right)
        return True

    def change_links(self, wanted: Object) -> None:
        """Says how brokers are to connect to each other: `internalTls` of the spec, or nothing."""
        if self.cluster is not None:
            self.edit(**{"internalTls": None, **wanted})
            self._counts["done: links changed"] += 1

    def lose_secrets(self, *names: str) -> None:
        """Deletes Secrets, those of them that exist."""
        if gone := [name for name in names if self._server.remove("Secret", name)]:
            self._counts[f"done: lost {' and '.join(gone)}"] += 1

    def ask_for_authority(self, what: str) -> None:
        """Asks for another authority of the brokers, by an annotation: `renew` or `replace`."""
        if (secret := self._server.get_now("Secret", f"{NAME}-cluster-ca")) is not None:
            secret["metadata"].setdefault("annotations", {})[f"ottla.dev/force-{what}"] = "true"
            self._counts[f"done: authority to {what}"] += 1

    def move_nodes(self) -> None:
        """Gives the nodes another address, and tells it in the pods' status."""
        first, _, last = self._server.node_address.rpartition(".")
        self._server.node_address = f"{first}.{int(last) % 250 + 1}"
        for pod in self._server.all("Pod"):
            if "status" in pod:
                pod["status"]["hostIP"] = self._server.node_address
        self._counts["done: nodes got another address"] += 1

    def grow_volumes(self) -> bool:
        wanted = self._volumes()
        grown = self._random.choice(wanted)
        grown["size"] = f"{int(grown['size'][:-2]) + 1}Gi"
        self._give_volumes(wanted)
        return True

    def add_volume(self) -> bool:
        """Adds a new volume, or a volume that was removed before and whose claims may still exist."""
        wanted = self._volumes()
        if len(wanted) >= VOLUMES_MAX:
            return False
        unused = set(range(VOLUMES_MAX + 1)) - {each["id"] for each in wanted}
        self._give_volumes([*wanted, {"id": self._random.choice(sorted(unused)), "size": "1Gi"}])
        return True

    def take_volume(self) -> bool:
        wanted = self._volumes()
        if len(wanted) < 2:
            return False
        wanted.remove(self._random.choice(wanted))
        self._give_volumes(wanted)
        return True

    def _volumes(self) -> list[Object]:
        """Each broker's volumes in the spec."""
        storage = self.spec["brokers"]["storage"]
        return storage.get("volumes") or [{"id": 0, "size": storage["size"]}]

    def _give_volumes(self, wanted: list[Object]) -> None:
        self.edit(brokers={**self.spec["brokers"], "storage": {"volumes": wanted}})

    def remake_cluster(self, *, topics: str, orphan: bool = False, fewer: bool = False) -> bool:
        """Deletes the Cluster, with its Topics unless `topics` is `kept`, and applies it again. The Topics are applied
        before the Cluster if `topics` is `first`, and by a later action if it is `later`. With `fewer` the Cluster has
        fewer brokers than before, and the missing brokers aren't drained.
        """
        sets = {item["metadata"]["name"]: item["spec"]["replicas"] for item in self._server.all("StatefulSet")}
        brokers = self.spec["brokers"]
        pools = brokers.get("pools") or [{"name": "broker", **brokers}]
        steady = all(sets.get(f"{NAME}-{pool['name']}") == pool["replicas"] for pool in pools)
        if not steady or self._brokers.drained() or (self.cluster or {}).get("status", {}).get("draining"):
            return False  # brokers that are being removed would have to come back
        if not orphan and self._server.get_now("Secret", f"{NAME}-cluster-ca") and not self._owns_its_pods():
            return False  # the authority would go, while pods that nobody owns yet run on and trust nobody else
        spec = self.spec
        if fewer:
            if sum(pool["replicas"] for pool in _pools(spec)) <= REPLICAS_MAX or _pools(spec)[0]["replicas"] < 2:
                return False  # no topic may have more replicas than there are brokers
            _pools(spec)[0]["replicas"] -= 1
        if topics != "kept":
            for item in self._server.all("Topic"):
                self._server.remove("Topic", item["metadata"]["name"])
        self._server.remove("Cluster", NAME, orphan=orphan)
        if topics == "first":
            self.apply_topics()
        if self._random.random() < 0.5:
            self._server.step()
        self._server.make("Cluster", NAME, spec)
        self._wishes.beside |= {(item["metadata"]["uid"], self.uid) for item in self._server.all("Topic")}
        return True

    def _owns_its_pods(self) -> bool:
        owned = {
            item["metadata"]["uid"]
            for item in self._server.all("StatefulSet")
            if any(owner["uid"] == self.uid for owner in item["metadata"].get("ownerReferences") or ())
        }
        return all(
            any(owner["uid"] in owned for owner in pod["metadata"].get("ownerReferences") or ())
            for component in ("broker", "controller")
            for pod in self._server.made(component).values()
        )

    def bring_back(self) -> bool:
        """Asks again for removed brokers that have the only replicas of some partition: in the pools whose names the
        claims of their volumes have."""
        if self.cluster is None:
            return False
        spec, homes = self.spec, self._brokers.directories.homes()
        pools = {f"{NAME}-{pool.get('name', 'broker')}": pool for pool in _pools(spec)}
        wanted = {
            pool.get("firstId", 0) + number: f"{of}-{pool.get('firstId', 0) + number}"
            for of, pool in pools.items()
            for number in range(pool["replicas"])
        }
        there = {broker for broker, pod in wanted.items() if homes.get(broker, pod) == pod}
        if not (needed := self._brokers.needed_beside(there)):
            return False
        for broker in sorted(needed - there):
            # A broker may have stopped before it made a new replica on one of its volumes. Then any pool will do.
            of = homes[broker].rpartition("-")[0] if broker in homes else _pool_for(pools, broker)
            if (pool := pools.get(of)) is None or broker < pool.get("firstId", 0):
                return self._bring_back_pool(spec, broker, of.removeprefix(f"{NAME}-"))
            pool["replicas"] = max(pool["replicas"], broker + 1 - pool.get("firstId", 0))
        self.edit(brokers=spec["brokers"])
        return True

    def _bring_back_pool(self, spec: Object, broker: int, name: str) -> bool:
        """Adds a removed pool to the spec again, with the one broker `broker`. The pool that has the ids before it
        loses the ids from `broker` on."""
        pools = spec["brokers"]["pools"]
        another = max((each for each in pools if each["firstId"] <= broker), key=itemgetter("firstId"))
        if another["firstId"] == broker:
            pools.remove(another)
        another["replicas"] = min(another["replicas"], broker - another["firstId"])
        pools.append({**another, "name": name, "firstId": broker, "replicas": 1})
        self.edit(brokers=spec["brokers"])
        return True

    # ---- Topics

    def add_topic(self) -> bool:
        if len(self.topics) >= TOPICS_MAX or not self._server.defined:
            return False
        self._versions += 1
        several = sum(pool["replicas"] for pool in _pools(self.spec)) > 1
        self._make_topic(
            f"t-{self._versions}",
            {
                "cluster": {"name": NAME},
                "partitions": self._random.randint(1, 3),
                "replicationFactor": self._random.randint(1, REPLICAS_MAX) if several else 1,
                "deletionPolicy": self._random.choice(("Delete", "Delete", "Retain")),
            },
        )
        return True

    def delete_topic(self) -> bool:
        if not (there := [name for name in self.topics if self._server.get_now("Topic", name)]):
            return False
        name = self._random.choice(there)
        gone = self._server.remove("Topic", name)
        assert gone is not None
        del self.topics[name]
        self._wishes.deleted[gone["metadata"]["uid"]] = self.uid
        return True

    def remake_topic(self) -> bool:
        before = copied(self.topics)
        if not self.delete_topic():
            return False
        (name,) = before.keys() - self.topics.keys()
        if self._random.random() < 0.5:
            before[name]["partitions"] = 1
        if self._random.random() < 0.3:
            before[name]["deletionPolicy"] = "Retain"
        self._make_topic(name, before[name])
        return True

    def remake_topic_before_an_upgrade(self) -> bool:
        """Recreates a Topic as under the former release, which gave the topic to the new Topic and reported that
        partitions can't be removed."""
        if self._server.no_rights or not self.remake_topic():
            return False
        made = max(self._server.all("Topic"), key=lambda item: int(item["metadata"]["resourceVersion"]))
        told = Condition("Ready", False, "NotSupported", "partitions can't be taken away")
        made["status"] = {"observedGeneration": 1, "conditions": conditions((), [told], 1, self._server.now)}
        self._wishes.given.add(made["metadata"]["uid"])
        return self.upgrade()

    def grow_topic(self) -> bool:
        if not (there := [name for name in self.topics if self._server.get_now("Topic", name)]):
            return False
        name = self._random.choice(there)
        self.topics[name]["partitions"] += 1
        self._server.edit("Topic", name, lambda spec: spec.update(self.topics[name]))
        return True

    def apply_topics(self) -> bool:
        missing = [name for name in self.topics if self._server.get_now("Topic", name) is None]
        if not missing or not self._server.defined:
            return False
        for name in missing:
            self._make_topic(name, self.topics[name])
        return True

    def undefine(self) -> bool:
        if not self._server.defined:
            return False
        self._server.undefine_topics()
        return True

    def restore(self) -> bool:
        """Restores the Topics from the last backup, if the Cluster is still the same. Other objects stay unchanged."""
        if self._backup is None or not self._server.defined or self._backup[0] != self._whose():
            return False
        self._server.restore_topics(self._backup[1])
        for item in self._server.all("Topic"):  # Topics that were deleted since are wanted again
            self.topics[item["metadata"]["name"]] = copied(item["spec"])
            self._wishes.deleted.pop(item["metadata"]["uid"], None)
        self.restored = True
        return True

    def _whose(self) -> tuple[str, str]:
        """The uids of the Cluster and of the CRD of Topics."""
        definition = self._server.objects["CustomResourceDefinition", "", DEFINITION]
        return self.uid, definition["metadata"]["uid"]

    def define(self) -> bool:
        if self._server.defined:
            return False
        self._server.define_topics()
        return True

    def _make_topic(self, name: str, spec: Object) -> None:
        self.topics[name] = spec
        made = self._server.make("Topic", name, copied(spec))
        self._wishes.beside.add((made["metadata"]["uid"], self.uid))
        if spec["deletionPolicy"] == "Retain":
            self._wishes.retained.add(made["metadata"]["uid"])

    # ---- other objects, and accidents

    def stray(self) -> bool:
        name = self._random.choice(("ghost-7", "zz-0", "k-brokers-x"))
        if name in self.strays:
            self.strays.discard(name)
            return self._server.remove("Pod", name) is not None
        self.strays.add(name)
        labels = {MANAGED_BY: "ottla-operator", INSTANCE: NAME, COMPONENT: self._random.choice(("broker", "etcd"))}
        spec = {"containers": [{"name": "broker", "image": "ottla:0"}]}
        self._server.make("Pod", name, spec, labels=labels)
        return True

    def refuse(self) -> bool:
        request = f"apply {self._random.choice(REFUSABLE)}"
        if self._server.refusals.pop(request, None) is None:
            self._server.refusals[request] = KubeError(
                self._random.choice((403, 422, 500)), request, "a webhook says no"
            )
        return True

    def drift(self) -> bool:
        return self._server.remove(*self._random.choice(DRIFTS)) is not None

    def upgrade(self) -> bool:
        self._versions += 1
        self.defaults = Defaults("ottla:1", f"etcd:{self._versions}", str(self._versions))
        self.operator_upgraded = True
        return True

    def take_rights(self) -> bool:
        self._server.no_rights = True
        return True

    def give_rights(self) -> bool:
        was, self._server.no_rights = self._server.no_rights, False
        return was

    def crash(self) -> bool:
        pods = [pod for pod in self._server.all("Pod") if "status" in pod and not going(pod)]
        if not pods:
            return False
        name = self._random.choice(pods)["metadata"]["name"]
        self._server.crash(name)
        return ("Pod", NAMESPACE, name) in self._server.objects

    def block(self) -> bool:
        if self._brokers.blocking:
            self._brokers.blocking.clear()
            return False
        if running := sorted(self._brokers.running()):
            self._brokers.blocking = {self._random.choice(running)}
        return bool(running)


def _pools(spec: Object) -> list[Object]:
    """The parts of a Cluster's spec that have a number of brokers: the pools, or `brokers` itself."""
    brokers: Object = spec["brokers"]
    return list(brokers.get("pools") or [brokers])


def _pool_for(pools: dict[str, Object], broker: int) -> str:
    """The name of the StatefulSet whose pool gets this broker with the fewest more brokers. `pools`: by StatefulSet."""
    firsts = {of: pool.get("firstId", 0) for of, pool in pools.items()}
    return max((of for of, first in firsts.items() if first <= broker), key=firsts.__getitem__)
