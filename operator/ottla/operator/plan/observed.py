"""Reads from Kubernetes' objects the facts about a cluster's pods that decisions need. Pure: times are inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType

from ottla.operator.objects import Object, annotation, condition, going, holds, seconds_since
from ottla.operator.plan import names
from ottla.operator.plan.broker_pods import OF_ALL, RACK, RACK_VARIABLE, of_one
from ottla.operator.plan.etcd_members import Seen
from ottla.operator.plan.etcd_pods import NO_DATA
from ottla.operator.plan.resize import Resize, revision_of
from ottla.operator.plan.roll import Pod, Report
from ottla.operator.plan.storage import claims_of, grows_at_its_start
from ottla.operator.spec.cluster import RESTART, Cluster
from ottla.settings.properties import properties_checksum
from ottla.wording import abridged

TOLD_MAX = 300  # characters of Kubernetes' own words about a pod
_NEVER: Mapping[str, datetime] = MappingProxyType({})
# The reasons of a container's state `waiting` that don't pass by themselves.
STUCK_REASONS = frozenset(
    "CrashLoopBackOff ImagePullBackOff ErrImagePull ErrImageNeverPull InvalidImageName CreateContainerConfigError "
    "CreateContainerError RunContainerError".split()
)


def broker_pod(
    broker: int,
    name: str,
    stateful_set: Object | None,
    pod: Object | None,
    report: Report | None,
    claims: Mapping[str, Object],
    now: datetime,
    files: Mapping[str, str] | None = None,
    absent_since: Mapping[str, datetime] = _NEVER,
    resize: Resize | None = None,
) -> Pod:
    """The facts about a broker's pod that `roll.py` needs.

    `claims`: by name; `files`: the present files of settings, by their names in the ConfigMap (None if they aren't
    known); `absent_since`: since when pods are missing, by name; `resize`: the state of the pod's resize, if the pod
    and its StatefulSet's template differ in nothing but resources.
    """
    if pod is None:
        rack = _rack(stateful_set["spec"]["template"]) if stateful_set is not None else ""
        return Pod(broker, name, rack=rack, not_ready_s=(now - absent_since.get(name, now)).total_seconds())
    grows = grows_at_its_start(pod, claims, now)
    file = _file(broker, files)
    current = _file_is_current(report, file)
    return Pod(
        id=broker,
        name=name,
        uid=pod["metadata"]["uid"],
        outdated=outdated(stateful_set, pod, resize)
        or (f"its volume {grows} grows only when the pod starts" if grows else "")
        or ("its own settings change" if current is False and _is_of_all(pod, files) else ""),
        ready=is_ready(pod),
        leaving=going(pod),
        stuck=stuck(pod),
        not_ready_s=not_ready_s(pod, now),
        rack=_rack(pod),
        lacks_volume=_lacks_volume(stateful_set, pod),
        file=file,
        file_is_current=current,
        resize=None if resize is None or resize.refused else resize,
        not_in_place=resize is not None and bool(resize.refused),
        report=report,
    )


def _rack(pod: Object) -> str:
    """The rack of a broker's pod or of a template of pods: as the spec says it, or as the pod's node has it. Empty
    while none is known."""
    made_for = (
        each.get("value", "")
        for container in pod["spec"]["containers"]
        for each in container.get("env") or ()
        if each["name"] == RACK_VARIABLE
    )
    return next(made_for, "") or annotation(pod, RACK)


def _lacks_volume(stateful_set: Object | None, pod: Object) -> bool:
    """Whether the pod lacks a volume that its StatefulSet would give to a new pod."""
    templates = (stateful_set or {"spec": {}})["spec"].get("volumeClaimTemplates") or ()
    wanted = {f"{each['metadata']['name']}-{pod['metadata']['name']}" for each in templates}
    return not wanted <= set(claims_of(pod))


def _file(broker: int, files: Mapping[str, str] | None) -> str:
    """The checksum of the settings that a broker would be started with now; empty where they aren't known."""
    if files is None or OF_ALL not in files:
        return ""
    return properties_checksum(files[OF_ALL] + files.get(of_one(broker), ""))


def _file_is_current(report: Report | None, file: str) -> bool | None:
    """Whether the broker was started with the settings that it would be started with now; None if that isn't known."""
    if report is None or not report.file_checksum or not file:
        return None
    return report.file_checksum == file


def _is_of_all(pod: Object, files: Mapping[str, str] | None) -> bool:
    """Whether a pod was made for the present common settings. If not, the StatefulSet's template shows that."""
    made_for = (pod["metadata"].get("annotations") or {}).get(names.CONFIG_CHECKSUM)
    return files is not None and made_for == names.checksum(files[OF_ALL])


def broker_sets(sets: Iterable[Object]) -> dict[str, range]:
    """The ids of the brokers that each StatefulSet is to have, by the StatefulSet's name."""
    found = {}
    for item in sets:
        first = (item["spec"].get("ordinals") or {}).get("start", 0)
        found[item["metadata"]["name"]] = range(first, first + item["spec"].get("replicas", 0))
    return found


def existing(sets: Iterable[Object], pods: Iterable[Object]) -> list[tuple[int, str]]:
    """The ids of the brokers that exist or that StatefulSets will create, each with the name of its StatefulSet.

    First come the brokers that have pods, then those that the StatefulSets want, so most brokers are listed twice.
    """
    named = (pod["metadata"]["name"].rpartition("-") for pod in pods)
    of_pods = [(int(number), of) for of, _, number in named]
    return of_pods + [(broker, of) for of, ids in broker_sets(sets).items() for broker in ids]


def broker_names(cluster: Cluster, sets: Iterable[Object], pods: Iterable[Object]) -> dict[int, str]:
    """The names of all brokers' pods: of wanted brokers, and of existing ones, which may still lead partitions."""
    wanted = {broker: f"{names.broker_set(cluster, pool)}-{broker}" for pool in cluster.pools for broker in pool.ids}
    return {**{broker: f"{of}-{broker}" for broker, of in existing(sets, pods)}, **wanted}


def outdated(stateful_set: Object | None, pod: Object, resize: Resize | None = None) -> str:
    """Why a pod differs from what its StatefulSet would make now; empty if the pod doesn't differ, or the difference
    needs no restart.

    The annotation RESTART on a pod asks for a restart only if the template doesn't have it with the same value:
    otherwise each successor of the pod would have it, too, and would be restarted again.
    """
    annotations = pod["metadata"].get("annotations") or {}
    if RESTART in annotations and annotations[RESTART] != _of_template(stateful_set).get(RESTART):
        return f"the annotation {RESTART} asks for a restart"
    if stateful_set is None or not is_current(stateful_set):
        return ""
    if resize is not None and not resize.unknown:
        what = f" ({resize.what})" if resize.what else ""
        return f"its resources change{what}, and not in place: {resize.refused}" if resize.refused else ""
    if revision_of(pod) == stateful_set["status"].get("updateRevision"):
        return ""
    template = stateful_set["spec"]["template"]
    reasons = []
    images = [[container["image"] for container in spec["containers"]] for spec in (pod["spec"], template["spec"])]
    if images[0] != images[1]:
        reasons.append(f"its image becomes {images[1][0]}")
    wanted = _of_template(stateful_set)
    if annotations.get(names.CONFIG_CHECKSUM) != wanted.get(names.CONFIG_CHECKSUM):
        reasons.append("its settings change")
    if annotations.get(names.CERTIFICATES_CHECKSUM) != wanted.get(names.CERTIFICATES_CHECKSUM):
        reasons.append("its certificates were renewed")
    if annotations.get(names.RESTARTED_FOR) != wanted.get(names.RESTARTED_FOR):
        reasons.append(f"the Cluster's annotation {RESTART} asks for a restart")
    return " and ".join(reasons) or ("its pod template changes" if resize is None else "")


def restarted_for(sets: Iterable[Object], pods: Iterable[Object]) -> str:
    """The value that the Cluster's annotation RESTART had when pods were last made for it; empty if it never had one.

    The value is kept when a person removes the annotation, because the removal asks for no restart. While a StatefulSet
    is deleted and made again, its pods still have the value.
    """
    made_with = [_of_template(stateful_set) for stateful_set in sets]
    made_with += [pod["metadata"].get("annotations") or {} for pod in pods]
    return next((each[names.RESTARTED_FOR] for each in made_with if each.get(names.RESTARTED_FOR)), "")


def _of_template(stateful_set: Object | None) -> Mapping[str, str]:
    """The annotations that a StatefulSet's template gives to pods."""
    return {} if stateful_set is None else stateful_set["spec"]["template"]["metadata"].get("annotations") or {}


def is_current(stateful_set: Object) -> bool:
    """Whether a StatefulSet's status is about its present spec."""
    status = stateful_set.get("status") or {}
    return bool(status.get("observedGeneration", 0) >= stateful_set["metadata"].get("generation", 0))


def is_ready(pod: Object) -> bool:
    """Whether the pod is ready and isn't being deleted."""
    return not going(pod) and holds(pod.get("status"), "Ready")


def stuck(pod: Object) -> str:
    """Why a pod can't become ready by itself; empty if it may become ready."""
    return unschedulable(pod) or crashed(pod)


def unschedulable(pod: Object) -> str:
    """What the scheduler says of a pod that no node can run; empty where a node can."""
    scheduled = condition(pod.get("status"), "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return abridged(f"no node can run it: {scheduled.get('message', '')}".strip(": "), TOLD_MAX)
    return ""


def crashed(pod: Object) -> str:
    """Why a container of the pod doesn't run, and won't run by itself; empty if all its containers may."""
    for container in _container_statuses(pod):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in STUCK_REASONS:
            ended = (container.get("lastState") or {}).get("terminated") or {}
            detail = ended.get("message") or waiting.get("message") or ""
            return abridged(f"{waiting['reason']}: {detail}".strip(": \n"), TOLD_MAX)
    return ""


def etcd_pods(pods: Iterable[Object]) -> list[Seen]:
    """The facts about etcd's pods that `etcd_members.py` needs. Pods that are being deleted are left out."""
    return [
        Seen(
            pod["metadata"]["name"],
            is_ready(pod),
            no_data=any(map(_said_no_data, _container_statuses(pod))),
            uid=pod["metadata"]["uid"],
        )
        for pod in pods
        if not going(pod)
    ]


def address(pod: Object) -> str:
    """The pod's IP address; empty where it has none yet."""
    return str((pod.get("status") or {}).get("podIP") or "")


def addresses(pods: Mapping[int, Object]) -> dict[int, str]:
    """The addresses of the pods that run, by broker id."""
    return {broker: found for broker, pod in pods.items() if (found := address(pod)) and not going(pod)}


def versions(pods: Iterable[Object]) -> str:
    """The tags of the pods' images; several while pods differ."""
    return ", ".join(sorted({image_version(pod["spec"]["containers"][0]["image"]) for pod in pods}))


def image_version(image: str) -> str:
    """An image's tag, or the beginning of its digest."""
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return tag or (digest.partition(":")[2][:12] if digest else "latest")


def _container_statuses(pod: Object) -> list[Object]:
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _said_no_data(container: Object) -> bool:
    states = (container.get("state") or {}, container.get("lastState") or {})
    return any(NO_DATA in ((state.get("terminated") or {}).get("message") or "") for state in states)


def not_ready_s(pod: Object, now: datetime) -> float:
    """For how many seconds the pod hasn't been ready; 0 where it is."""
    ready = condition(pod.get("status"), "Ready")
    since = ready.get("lastTransitionTime") or pod["metadata"].get("creationTimestamp")
    return 0.0 if ready.get("status") == "True" or since is None else seconds_since(since, now)
