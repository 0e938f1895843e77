"""The files of the brokers' Secret in the pods, and the keys and authorities that the running processes use.

A kubelet mounts the Secret when a pod starts, looks for changes now and then, and at once when the pod's annotation
says so. While the Secret is missing, running pods keep their files, and no pod starts. A process reads changed files
while it runs: it keeps its key while the file of the key is missing. It takes over nothing that keeps a broker with the
former files and one with the new ones from accepting each other. A process of an older release reads no file at all
while that of its key is missing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from ottla.operator.certificates import Issued, decoded, each_in, pair_in
from ottla.operator.objects import Object, annotation, going
from ottla.operator.plan.broker_tls import CLUSTER_CA_FILE, LINKS_FILE
from ottla.operator.plan.links import stage_of
from ottla.operator.plan.names import FILES_CHECKSUM, broker_certificates, operator_certificate
from tests.simulation_operator.kubernetes import ApiServer

LOOKED_AGAIN = timedelta(seconds=90)


@dataclass(frozen=True)
class InForce:
    """What a process shows to others and whom it trusts: PEM texts."""

    certificate: bytes
    trust: bytes

    def accepts(self, certificate: bytes) -> bool:
        """Whether the process trusts the authority of a certificate."""
        return any(_signed(certificate, each) for each in each_in([self.trust]))


@dataclass
class _Mount:
    files: dict[str, bytes]
    told: str  # the value of the annotation when the kubelet looked
    looked: datetime


@lru_cache(maxsize=100_000)
def _signed(certificate: bytes, authority: bytes) -> bool:
    try:
        issuer = x509.load_pem_x509_certificate(authority)
        x509.load_pem_x509_certificate(certificate).verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


class Kubelets:
    """The kubelets and the processes of the brokers' and controllers' pods."""

    def __init__(self, server: ApiServer, cluster: str, counts: Counter[str]) -> None:
        self.processes: dict[str, InForce] = {}  # by the pod's name, of pods with encrypted links
        self.older: set[str] = set()  # the uids of the pods whose processes are those of an older release
        self.deaf: set[str] = set()  # the pods whose kubelets don't look again before their time
        self._server = server
        self._cluster = cluster
        self._counts = counts
        self._began_under: dict[str, str] = {}  # by the pod's name: the uid of the Cluster when its process started
        self._mounts: dict[str, _Mount] = {}  # by the pod's uid

    def may_serve(self, pod: Object) -> bool:
        """Whether the pod has all files that its process needs at its start."""
        if not _mounts_keys(pod):
            return True
        self._look(pod, starts=True)
        mount = self._mounts.get(pod["metadata"]["uid"])
        return mount is not None and (
            not stage_of(pod["metadata"]).encrypted_open or {LINKS_FILE, CLUSTER_CA_FILE} <= mount.files.keys()
        )

    def serves(self, name: str, pod: Object) -> None:
        """The pod's process has started: it has read its files."""
        if not _mounts_keys(pod) or not stage_of(pod["metadata"]).encrypted_open:
            self.processes.pop(name, None)
            return
        files = self._mounts[pod["metadata"]["uid"]].files
        self._began_under[name] = self._cluster_uid()
        self.processes[name] = InForce(pair_in(files[LINKS_FILE]).certificate, files[CLUSTER_CA_FILE])

    def step(self) -> None:
        """Kubelets look for changes, and processes read changed files."""
        pods = {**self._server.made("broker"), **self._server.made("controller")}
        self.processes = {
            name: each for name, each in self.processes.items() if name in pods and self._server.serves(name)
        }
        there = {pod["metadata"]["uid"] for pod in pods.values()}
        self._mounts = {uid: mount for uid, mount in self._mounts.items() if uid in there}
        for name, pod in sorted(pods.items()):
            if _mounts_keys(pod) and not going(pod):
                self._look(pod)
                uid = pod["metadata"]["uid"]
                if name in self.processes and (LINKS_FILE in self._mounts[uid].files or uid not in self.older):
                    self._reread(name, self._mounts[uid].files)

    def accepts(self, pod: str, pair: Issued) -> bool:
        """Whether the pod's process accepts a client with this certificate."""
        return pod in self.processes and self.processes[pod].accepts(pair.certificate)

    def shows(self, pod: str, authority: bytes) -> bool:
        """Whether the pod's process shows a certificate that this authority has signed."""
        return pod in self.processes and _signed(self.processes[pod].certificate, authority)

    def mounted(self, pod: str) -> dict[str, bytes]:
        """The files that a pod has."""
        item = self._server.get_now("Pod", pod)
        return self._mounts[item["metadata"]["uid"]].files if item is not None else {}

    def strangers(self) -> list[str]:
        """A sentence for each process of the present Cluster that doesn't accept another one, or the operator. Pods of
        a Cluster that was deleted may run for a while."""
        told = []
        secret = decoded(self._server.get_now("Secret", operator_certificate(self._cluster)))
        ours = {
            name: process for name, process in self.processes.items() if self._began_under[name] == self._cluster_uid()
        }
        others = dict(ours)
        if "tls.crt" in secret:
            others["the operator"] = InForce(secret["tls.crt"], secret["ca.crt"])
        for name, process in ours.items():
            for other, its in others.items():
                if not process.accepts(its.certificate) or not its.accepts(process.certificate):
                    told.append(f"{name} and {other} don't accept each other's certificates")
        return told

    def _cluster_uid(self) -> str:
        cluster = self._server.get_now("Cluster", self._cluster)
        return cluster["metadata"]["uid"] if cluster is not None else ""

    def _look(self, pod: Object, *, starts: bool = False) -> None:
        uid, told, now = pod["metadata"]["uid"], annotation(pod, FILES_CHECKSUM), self._server.now
        before = self._mounts.get(uid)
        hurried = before is not None and told != before.told and pod["metadata"]["name"] not in self.deaf
        if before is not None and not hurried and not starts and now - before.looked < LOOKED_AGAIN:
            return
        secret = self._server.get_now("Secret", broker_certificates(self._cluster))
        if secret is None:
            return  # the files stay, and the kubelet tries it again
        self._counts["files of a running pod looked at by its annotation"] += hurried
        self._mounts[uid] = _Mount(decoded(secret), told, now)

    def _reread(self, name: str, files: dict[str, bytes]) -> None:
        before = self.processes[name]
        self._counts["a running process kept its key"] += LINKS_FILE not in files
        key = pair_in(files[LINKS_FILE]).certificate if LINKS_FILE in files else before.certificate
        after = InForce(key, files.get(CLUSTER_CA_FILE, before.trust))
        both = after.accepts(before.certificate) and before.accepts(after.certificate)
        if after != before and both and after.accepts(after.certificate):
            self.processes[name] = after


def _mounts_keys(pod: Object) -> bool:
    return any(volume["name"] == "tls" for volume in pod["spec"].get("volumes", ()))
