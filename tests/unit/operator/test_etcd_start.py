"""The script that starts a member of etcd, with a stand-in for etcd: who may begin, and how."""

from __future__ import annotations

import subprocess
from pathlib import Path
from urllib.request import urlopen

import pytest

from ottla.operator.plan.etcd_pods import CONFIG_FOLDER, DATA_FOLDER, NO_DATA, config_map, member_set
from ottla.operator.spec.cluster import Etcd as EtcdSpec
from tests.peers.etcd import Etcd
from tests.unit.operator.test_cluster_objects import _cluster


@pytest.mark.parametrize(
    ("data", "state", "join", "started"),
    [
        (False, "new", False, "new"),
        (False, "existing", False, None),
        (False, "existing", True, "existing"),
        (True, "existing", False, "new"),  # what it has outweighs the flag
        (True, "new", False, "new"),
    ],
)
def test_who_may_begin(tmp_path: Path, data: bool, state: str, join: bool, started: str | None) -> None:
    config, volume, said = tmp_path / "config", tmp_path / "data", tmp_path / "said"
    config.mkdir()
    volume.mkdir()
    if data:
        (volume / "etcd/member").mkdir(parents=True)
    if join:
        (config / "join-k-etcd-1").write_text("7")
    (config / "state").write_text(state)
    (config / "initial-cluster").write_text("k-etcd-1=http://a")
    script = config_map(_cluster(), {})["data"]["start.sh"]
    for there, here in (
        (CONFIG_FOLDER, config),
        (f"{DATA_FOLDER}/etcd", volume / "etcd"),
        ("/dev/termination-log", said),
    ):
        script = script.replace(there, str(here))
    program = tmp_path / "etcd"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", script, "start.sh", "--data-dir=x"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "POD_NAME": "k-etcd-1"},
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    if started is None:
        assert (done.returncode, said.read_text().strip()) == (1, NO_DATA)
    else:
        assert done.stdout.split() == [
            *("--name", "k-etcd-1", "--initial-cluster", "k-etcd-1=http://a"),
            *("--initial-cluster-state", started, "--data-dir=x"),
        ]


def test_probes_are_content_with_an_etcd_that_is_full(tmp_path: Path) -> None:
    etcd = Etcd(tmp_path, ["--quota-backend-bytes=4194304"])
    try:
        full = ""
        while not full:
            try:
                etcd.control("put", "key", "x" * 100_000)
            except subprocess.CalledProcessError as error:
                full = error.stderr
        assert "space exceeded" in full
        cluster = _cluster()
        assert isinstance(cluster.metadata, EtcdSpec)
        (process,) = member_set(cluster, cluster.metadata, 3)["spec"]["template"]["spec"]["containers"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            with urlopen(f"http://{etcd.endpoint}{process[probe]['httpGet']['path']}", timeout=10) as answer:
                assert answer.status == 200
    finally:
        etcd.kill()
