"""Snapshots on a volume, by a CronJob: of the cluster's metadata, and of the whole etcd. Pure.

A snapshot of the metadata is for a restore (`ottla metadata restore`); a snapshot of etcd also has all other keys. The
file of a snapshot gets its final name only when it is complete.

The size of a snapshot is known before it is taken. If the volume has too little room, the oldest snapshots are deleted
until the next one fits; the newest of each kind is never deleted. If etcd doesn't answer, no snapshot is deleted.
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
LATE_S = 3 * JOB_S_MAX  # the longest time that a Job's three attempts may take

# Shell functions of both containers. Snapshots are named by their dates, so `ls` lists the snapshots of one kind with
# the oldest first.
_FUNCTIONS = """\
set -eu
cd "$FOLDER"
of_kind() { ls -1 | grep "[.]$1\\$" || true; }
older() { for kind in etcd metadata; do of_kind $kind | head -n "-$1"; done | sort; }
free_kib() { set -- $(df -Pk . | tail -n 1); echo "$4"; }
make_room() {
  while [ "$(free_kib)" -lt "$1" ]; do
    oldest=$(older 1 | head -n 1)
    if [ -z "$oldest" ]; then
      echo "the next snapshot takes $1 KiB, and beside the newest ones $(free_kib) are free:" \
        "raise metadata.etcd.snapshots.storage.size" >&2
      return
    fi
    echo "$oldest makes room: the next snapshot takes $1 KiB, and $(free_kib) are free" >&2
    rm -f "$oldest"
  done
}
"""
BACKUP_SCRIPT = (
    _FUNCTIONS
    + """\
rm -f .part*
name=$(date -u +%Y-%m-%dT%H-%M-%S)
ottla metadata backup "$HOME/backup" --config /etc/ottla/server.properties
make_room $(($(du -k "$HOME/backup" | cut -f 1) + 64))
cp "$HOME/backup" .part-metadata
mv .part-metadata "$name.metadata"
"""
)
SAVE_SCRIPT = (
    _FUNCTIONS
    + """\
name=$(date -u +%Y-%m-%dT%H-%M-%S)
for endpoint in $ENDPOINTS; do
  status=$(etcdctl --endpoints="$endpoint" $OPTIONS endpoint status --write-out=json) || continue
  bytes=$(echo "$status" | sed -n 's/.*"dbSize":"*\\([0-9][0-9]*\\).*/\\1/p')
  make_room $((${bytes:-0} / 1024 * 9 / 8 + 1024))
  if etcdctl --endpoints="$endpoint" $OPTIONS snapshot save .part; then
    mv .part "$name.etcd"
    break
  fi
done
test -e "$name.etcd"
older "$KEEP" | while read -r old; do rm -f "$old"; done
"""
)


def snapshot_objects(cluster: Cluster, etcd: Etcd) -> list[Object]:
    """The volume's claim and the CronJob; empty where the spec asks for no snapshots."""
    if etcd.snapshots is None:
        return []
    return [_claim(cluster, etcd.snapshots), _cron_job(cluster, etcd, etcd.snapshots)]


def last_snapshot(cron_job: Object | None) -> str:
    """When the last snapshot was complete (RFC 3339); empty where none was yet."""
    return str(((cron_job or {}).get("status") or {}).get("lastSuccessfulTime") or "")


def late(cron_job: Object | None, schedule: str, now: datetime) -> str:
    """A sentence for the status if a snapshot was due at least `LATE_S` ago and wasn't taken since; else empty."""
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
    env = [
        {"name": "HOME", "value": "/tmp"},
        {"name": "FOLDER", "value": FOLDER},
        {"name": "KEEP", "value": str(wanted.keep)},
    ]
    backup = container(
        cluster,
        "metadata",
        cluster.image,
        command=["/bin/sh", "-c", BACKUP_SCRIPT],
        env=[*env, {"name": "OTTLA_NODE_ID", "value": "0"}],
        volumeMounts=[*mounts, config],
        resources=resources,
    )
    scheme = "https" if etcd.tls else "http"
    tls = f"--cacert={SECRETS}/tls/ca.crt --cert={SECRETS}/tls/client.crt --key={SECRETS}/tls/client.key"
    save = container(
        cluster,
        "etcd",
        etcd.image,
        command=["/bin/sh", "-c", SAVE_SCRIPT],
        env=[
            *env,
            {"name": "ENDPOINTS", "value": " ".join(f"{scheme}://{each}" for each in etcd_endpoints(cluster))},
            {"name": "OPTIONS", "value": tls if etcd.tls else ""},
        ],
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
