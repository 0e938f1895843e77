"""Port forwards: the pod or Service that a DNS name of Kubernetes stands for, and kubectl's errors as sentences."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ottla.cli.errors import CommandError
from ottla.cli.forwards import Forward, Target, kubectl_sentence, target_of
from ottla.cli.kubernetes import bootstrap_inside
from tests.peers.kubectl_stand_in import cluster


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        ("flights-broker-0.flights-brokers.demo.svc", Target("demo", "pod/flights-broker-0", 9092)),
        ("flights-broker-0.flights-brokers.demo.svc.cluster.local", Target("demo", "pod/flights-broker-0", 9092)),
        ("flights-bootstrap.demo.svc", Target("demo", "service/flights-bootstrap", 9092)),
        ("flights-bootstrap.demo.svc.k8s.example", Target("demo", "service/flights-bootstrap", 9092)),
        ("kafka.example", None),
        ("127.0.0.1", None),
        ("a.b.c.d.svc", None),
        ("svc", None),
        ("::1", None),
    ],
)
def test_a_name_says_what_to_forward_to(host: str, wanted: Target | None) -> None:
    assert target_of(host, 9092) == wanted


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ('Error from server (NotFound): pods "x" not found\n', 'pods "x" not found'),
        ("error: lost connection to pod\n", "lost connection to pod"),
        ("E1123 12:00:00.000001   12 portforward.go:413] an error occurred\n", "an error occurred"),
        ("error: unable to forward port because pod is not running.\nCurrent status=Pending\n",
         "unable to forward port because pod is not running. Current status=Pending"),
    ],
)  # fmt: skip
def test_complaints_are_sentences(said: str, sentence: str) -> None:
    assert kubectl_sentence(said) == sentence


def test_only_a_listener_inside_kubernetes_is_forwarded_to() -> None:
    """On a listener for clients outside of Kubernetes, brokers advertise external addresses, and the machine that runs
    the command may be unable to reach them."""
    assert bootstrap_inside(cluster("flights", "flights-bootstrap.demo.svc:9092")) == "flights-bootstrap.demo.svc:9092"
    with pytest.raises(CommandError, match="no address for clients yet: waiting for etcd"):
        bootstrap_inside(cluster("flights", None, "waiting for etcd"))


def test_an_open_listener_is_better_than_one_that_asks_for_something() -> None:
    listeners = [("a", {"tls": True}), ("b", {"authentication": {"type": "scram-sha-512"}}), ("c", {})]
    found = {
        "spec": {"listeners": [{"name": name, **said} for name, said in listeners]},
        "status": {"listeners": [{"name": name, "bootstrap": f"k-{name}.demo.svc:9092"} for name, _ in listeners]},
    }
    assert bootstrap_inside(found) == "k-c.demo.svc:9092"
    found["status"]["listeners"].pop()
    assert bootstrap_inside(found) == "k-a.demo.svc:9092"


def test_a_forward_has_ended_when_its_kubectl_has(tmp_path: Path) -> None:
    """A process closes its output before it ends. Before the fix, the end of the output was taken for the end of the
    process."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(
        f"""#!/bin/sh
        trap 'exec >&- 2>&-; sleep 0.5; exit' TERM
        echo $$ >{tmp_path}/pid
        echo 'Forwarding from 127.0.0.1:1 -> 9092'
        while :; do sleep 0.05; done
        """
    )
    kubectl.chmod(0o755)
    forward = Forward([str(kubectl)], Target("demo", "pod/flights-broker-0", 9092))
    while forward.address() is None:
        time.sleep(0.01)
    forward.end()
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()
