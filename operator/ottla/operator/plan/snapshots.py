"""Snapshots on a volume, by a CronJob: of the cluster's metadata, and of the whole etcd. Pure.

The first is what a restore takes (`ottla metadata restore`); the second holds whatever else is in that etcd. A file has
its name only when it is complete.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from ottla.operator.objects import Object, seconds_since
from ottla.operator.plan import names
from ottla.operator.plan.broker_file import SECRETS, etcd_endpoints
from ottla.operator.plan.broker_pods import etcd_secrets
from ottla.operator.plan.pods import TMP_MOUNT, container, pod_template, volume_claim
from ottla.operator.spec.cluster import Cluster, Etcd, Snapshots, Template
from ottla.operator.spec.windows import parse_window

SNAPSHOTS = "snapshots"
FOLDER = "/snapshots"
JOB_S_MAX = 600
LATE_S = 3 * JOB_S_MAX  # a Job has three tries

_SAVE = """\
set -eu
name=$(date -u +%Y-%m-%dT%H-%M-%S)
for endpoint in {endpoints}; do
  if etcdctl --endpoints="{scheme}://$endpoint" {options} snapshot save "{folder}/.part"; then
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


def last_snapshot(cron_job: Object | None) -> str:
    """When the last one was complete; nothing where none was yet."""
    return str(((cron_job or {}).get("status") or {}).get("lastSuccessfulTime") or "")


def late(cron_job: Object | None, schedule: str, now: datetime) -> str:
    """What is to be told where a snapshot was due some time ago and there is none from after that."""
    made = (cron_job or {}).get("metadata", {}).get("creationTimestamp")
    since = last_snapshot(cron_job) or made
    if since is None or cron_job is None:
        return ""
    limit = now - timedelta(seconds=LATE_S)
    minutes = (seconds_since(since, now) - LATE_S) / 60
    if minutes <= 0 or not parse_window(schedule, int(minutes)).open_at(limit):
        return ""
    return f"no snapshot of etcd since {since}: see the Jobs of the CronJob {cron_job['metadata']['name']}"


def _claim(cluster: Cluster, wanted: Snapshots) -> Object:
    meta = names.metadata(cluster, names.snapshots(cluster), SNAPSHOTS)
    if cluster.keeps_metadata:
        del meta["ownerReferences"]  # it outlives the Cluster, as the brokers' volumes do
    return volume_claim(meta, wanted.volume)


def _cron_job(cluster: Cluster, etcd: Etcd, wanted: Snapshots) -> Object:
    mounts = [{"name": "snapshots", "mountPath": FOLDER}, TMP_MOUNT]
    secrets = etcd_secrets(cluster)
    mounts += [{"name": f"etcd-{kind}", "mountPath": f"{SECRETS}/{kind}", "readOnly": True} for kind in secrets]
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
    tls = f"--cacert={SECRETS}/tls/ca.crt --cert={SECRETS}/tls/client.crt --key={SECRETS}/tls/client.key"
    save_script = _SAVE.format(
        folder=FOLDER,
        endpoints=" ".join(etcd_endpoints(cluster)),
        keep=wanted.keep,
        scheme="https" if etcd.tls else "http",
        options=tls if etcd.tls else "",
    )
    save = container(
        cluster,
        "etcd",
        etcd.image,
        command=["/bin/sh", "-c", save_script],
        env=[{"name": "HOME", "value": "/tmp"}],
        volumeMounts=mounts,
        resources=resources,
    )
    volumes: list[Object] = [
        {"name": "snapshots", "persistentVolumeClaim": {"claimName": names.snapshots(cluster)}},
        {"name": "config", "configMap": {"name": names.broker_config(cluster)}},
    ]
    volumes += [{"name": f"etcd-{kind}", "secret": each} for kind, each in secrets.items()]
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
