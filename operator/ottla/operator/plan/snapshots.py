"""Snapshots on a volume, by a CronJob: of the cluster's metadata, and of the whole etcd. Pure.

The first is what a restore takes (`ottla metadata restore`); the second holds whatever else is in that etcd. A file has
its name only when it is complete.
"""

from __future__ import annotations

from ottla.operator.plan import names
from ottla.operator.plan.broker_file import etcd_endpoints
from ottla.operator.plan.names import Object
from ottla.operator.plan.pods import TMP_MOUNT, container, pod_template
from ottla.operator.spec.cluster import Cluster, Etcd, Snapshots, Template

SNAPSHOTS = "snapshots"
FOLDER = "/snapshots"
JOB_S_MAX = 600

_SAVE = """\
set -eu
name=$(date -u +%Y-%m-%dT%H-%M-%S)
for endpoint in {endpoints}; do
  if etcdctl --endpoints="http://$endpoint" snapshot save "{folder}/.part"; then
    mv "{folder}/.part" "{folder}/$name.etcd"
    break
  fi
done
test -e "{folder}/$name.etcd"
for kind in etcd metadata; do
  ls -1 "{folder}" | grep "\\.$kind\\$" | sort | head -n -{keep} | while read -r old; do rm -f "{folder}/$old"; done
done
"""
_BACKUP = """\
set -eu
name=$(date -u +%Y-%m-%dT%H-%M-%S)
ottla metadata backup /tmp/backup --config /etc/ottla/server.properties
cp /tmp/backup "{folder}/.part-metadata"
mv "{folder}/.part-metadata" "{folder}/$name.metadata"
"""


def snapshot_objects(cluster: Cluster, etcd: Etcd) -> list[Object]:
    """The volume's claim and the CronJob; nothing where no snapshots are asked for."""
    if etcd.snapshots is None:
        return []
    return [_claim(cluster, etcd.snapshots), _cron_job(cluster, etcd, etcd.snapshots)]


def _claim(cluster: Cluster, wanted: Snapshots) -> Object:
    spec: Object = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": wanted.volume.size}}}
    if wanted.volume.class_name is not None:
        spec["storageClassName"] = wanted.volume.class_name
    meta = names.metadata(cluster, names.snapshots(cluster), SNAPSHOTS)
    if all(pool.keep_volumes for pool in cluster.pools):
        del meta["ownerReferences"]  # it outlives the Cluster, as the brokers' volumes do
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}


def _cron_job(cluster: Cluster, etcd: Etcd, wanted: Snapshots) -> Object:
    mounts = [{"name": "snapshots", "mountPath": FOLDER}, TMP_MOUNT]
    config = {"name": "config", "mountPath": "/etc/ottla", "readOnly": True}
    resources: Object = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}
    backup = container(
        cluster,
        "metadata",
        cluster.image,
        command=["/bin/sh", "-c", _BACKUP.format(folder=FOLDER)],
        env=[{"name": "HOME", "value": "/tmp"}, {"name": "OTTLA_NODE_ID", "value": "0"}],
        volumeMounts=[*mounts, config],
        resources=resources,
    )
    endpoints = " ".join(etcd_endpoints(cluster))
    save = container(
        cluster,
        "etcd",
        etcd.image,
        command=["/bin/sh", "-c", _SAVE.format(folder=FOLDER, endpoints=endpoints, keep=wanted.keep)],
        env=[{"name": "HOME", "value": "/tmp"}],
        volumeMounts=mounts,
        resources=resources,
    )
    volumes: list[Object] = [
        {"name": "snapshots", "persistentVolumeClaim": {"claimName": names.snapshots(cluster)}},
        {"name": "config", "configMap": {"name": names.broker_config(cluster)}},
    ]
    pod = pod_template(cluster, SNAPSHOTS, Template(grace_s=30), [save], volumes)
    pod["spec"] |= {"initContainers": [backup], "restartPolicy": "Never"}
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": names.metadata(cluster, names.snapshots(cluster), SNAPSHOTS),
        "spec": {
            "schedule": wanted.schedule,
            "timeZone": "Etc/UTC",
            "concurrencyPolicy": "Forbid",
            "successfulJobsHistoryLimit": 1,
            "failedJobsHistoryLimit": 3,
            "jobTemplate": {
                "spec": {"backoffLimit": 2, "activeDeadlineSeconds": JOB_S_MAX, "template": pod},
            },
        },
    }
