"""The script that starts a member of etcd: when it starts etcd and with which flags. Some tests put a program in etcd's
place that only records its flags; others run etcd itself."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from ottla.operator.plan.etcd_pods import CONFIG_FOLDER, DATA_FOLDER, NO_DATA, config_map, member_set
from ottla.operator.spec.cluster import Etcd as EtcdSpec
from tests.peers.etcd import Etcd, etcd_3_6, etcd_binary, etcd_cluster
from tests.peers.wire import free_port
from tests.unit.operator.test_cluster_objects import _cluster


@pytest.mark.parametrize(
    ("left", "state", "join", "started"),
    [
        ("", "new", False, "new"),
        ("", "existing", False, None),
        ("", "existing", True, "existing"),
        ("snap/db", "new", False, "new"),
        ("snap/db", "existing", False, None),
        ("snap/db", "existing", True, "existing"),  # its first attempt to join has failed
        ("wal/0.wal", "existing", False, "existing"),  # a member with a WAL ignores the flag
        ("wal/0.wal", "new", False, "new"),
    ],
)
def test_who_may_begin(tmp_path: Path, left: str, state: str, join: bool, started: str | None) -> None:
    """What the start script does for each state of the volume (`left`: a file in the member's data directory, or empty)
    and each rule of the operator. It starts etcd with the flag `started`, or ends because the member has no data
    (None)."""
    volume = tmp_path / "data"
    volume.mkdir()
    if left:
        file = volume / "etcd/member" / left
        file.parent.mkdir(parents=True)
        file.touch()
    program = tmp_path / "etcd"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    told = {"state": state, "initial-cluster": "k-etcd-1=http://a", **({"join-k-etcd-1": "7"} if join else {})}
    done = subprocess.run(
        ["sh", "-c", _script(tmp_path, volume, told), "start.sh", "--data-dir=x"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "POD_NAME": "k-etcd-1"},
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    if started is None:
        assert (done.returncode, (tmp_path / "said").read_text().strip()) == (1, NO_DATA)
    else:
        assert done.stdout.split() == [
            *("--name", "k-etcd-1", "--initial-cluster", "k-etcd-1=http://a"),
            *("--initial-cluster-state", started, "--data-dir=x"),
        ]


@pytest.mark.parametrize("old", [True, False], ids=["3.5", "3.6"])
def test_a_member_whose_first_attempt_to_join_failed_joins_at_the_next(tmp_path: Path, old: bool) -> None:
    """The new member's first attempt to join reaches no other member, and leaves folders behind. This happens when DNS
    doesn't know the new member's name yet, so that the others refuse its certificate. Before the fix, the next attempt
    formed a cluster of its own, under the identity that had been removed from the list of members."""
    binary = etcd_binary() if old else etcd_3_6()
    members = present, _, lost = etcd_cluster(tmp_path, 3, binary)
    before = {member["name"]: member for member in _list(present)}
    mine = before["m2"]["peerURLs"][0]
    _change(present, "remove", f"{before['m2']['ID']:x}", members=2)
    lost.kill()
    _change(present, "add", "m2", "--peer-urls", mine, members=3)
    flags = ["--data-dir", str(tmp_path / "volume/etcd"), "--listen-peer-urls", mine]
    flags += ["--initial-advertise-peer-urls", mine, "--unsafe-no-fsync"]
    client = f"http://127.0.0.1:{free_port()}"
    flags += ["--listen-client-urls", client, "--advertise-client-urls", client]
    others = ",".join(f"{name}={before[name]['peerURLs'][0]}" for name in ("m0", "m1"))
    nobody = f"m0=http://127.0.0.1:{free_port()}"
    started: list[subprocess.Popen[bytes]] = []
    try:
        for reached in (nobody, others):
            rules = {"state": "existing", "initial-cluster": f"{reached},m2={mine}", "join-m2": "7"}
            command = ["sh", "-c", _script(tmp_path, tmp_path / "volume", rules), "start.sh", *flags]
            known = {"PATH": f"{binary.parent}:/usr/bin:/bin", "POD_NAME": "m2"}
            quiet = subprocess.DEVNULL
            started.append(subprocess.Popen(command, env=known, stdout=quiet, stderr=quiet, cwd=tmp_path))
            if reached == nobody:
                assert started[0].wait(60) != 0
                assert (tmp_path / "volume/etcd/member/snap/db").exists(), "a failed start leaves this file"
        deadline = time.monotonic() + 60
        while not {member.get("name") for member in _list(present)} >= {"m0", "m1", "m2"}:
            assert started[-1].poll() is None, "the member has ended again"
            assert time.monotonic() < deadline, _list(present)
            time.sleep(0.1)
    finally:
        for process in (*started, *(member.process for member in members)):
            process.kill()
            process.wait()


def _script(folder: Path, volume: Path, told: dict[str, str]) -> str:
    """The start script as the operator writes it. `told` becomes the files of the ConfigMap, which say what the member
    may do at its start; `volume` is the pod's volume."""
    config = folder / "config"
    shutil.rmtree(config, ignore_errors=True)
    config.mkdir()
    for name, value in told.items():
        (config / name).write_text(value)
    script: str = config_map(_cluster(), {})["data"]["start.sh"]
    for there, here in (
        (CONFIG_FOLDER, config),
        (f"{DATA_FOLDER}/etcd", volume / "etcd"),
        ("/dev/termination-log", folder / "said"),
    ):
        script = script.replace(there, str(here))
    return script


def _change(etcd: Etcd, *words: str, members: int) -> None:
    """Repeats a change until the list has this many members: etcd refuses the change until the members have been
    connected for five seconds, and a loaded machine may get the answer too late."""
    deadline = time.monotonic() + 60
    while True:
        with suppress(subprocess.CalledProcessError):
            etcd.control("member", *words)
        with suppress(subprocess.CalledProcessError):
            if len(_list(etcd)) == members:
                return
        assert time.monotonic() < deadline, words
        time.sleep(0.2)


def _list(etcd: Etcd) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(etcd.control("member", "list", "-w", "json"))["members"]
    return found


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
