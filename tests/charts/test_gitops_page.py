"""The health checks of docs/gitops.md, word for word, evaluated by Argo CD's Lua and by Flux's own evaluator."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest
import yaml

from ottla.operator.objects import API_VERSION
from tests.peers.tools import ROOT, go_program

PAGE = (ROOT / "docs/gitops.md").read_text()
BLOCKS = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.S)]
CONFIG_MAP = next(block for block in BLOCKS if block["kind"] == "ConfigMap")
KUSTOMIZATION = next(block for block in BLOCKS if block["kind"] == "Kustomization")
# Reasons that are Kafka's error codes: the operator's source doesn't name them.
KAFKA_REASONS = {"InvalidConfig", "PolicyViolation"}

Object = dict[str, Any]
Condition = tuple[str, str, str]  # type, status, reason
READY: Condition = ("Ready", "True", "BrokersServe")
SETTLED: Condition = ("Progressing", "False", "AsWanted")
CHANGING: Condition = ("Progressing", "True", "Changing")
LED: Condition = ("PartitionsLed", "True", "AllLed")
UNLED: Condition = ("PartitionsLed", "False", "NoLeader")
PAUSED: Condition = ("Paused", "True", "SpecPaused")

Verdicts = tuple[str, str]  # Argo CD's and Flux's
Case = tuple[str, Object, Verdicts]
WELL: Verdicts = ("Healthy", "Current")
PASSES: Verdicts = ("Progressing", "InProgress")
FAILED: Verdicts = ("Degraded", "Failed")
UNWELL: Verdicts = ("Degraded", "InProgress")  # Flux's "failed" is for troubles that only another spec ends


def resource(kind: str, *found: Condition, generation: int = 2, observed: int | None = 2) -> Object:
    """A resource with these conditions. With `observed` None the operator has written no status yet."""
    made: Object = {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": "flights", "namespace": "demo", "generation": generation},
        "spec": {},
    }
    if observed is not None:
        listed = [
            {"type": name, "status": status, "reason": reason, "message": f"because of {reason}"}
            for name, status, reason in found
        ]
        made["status"] = {"observedGeneration": observed, "message": "what is awaited", "conditions": listed}
    return made


CLUSTERS: list[Case] = [
    ("healthy", resource("Cluster", READY, SETTLED, LED), WELL),
    ("no status", resource("Cluster", observed=None), ("Progressing", "Unknown")),
    ("no conditions yet", resource("Cluster"), PASSES),
    ("spec not seen", resource("Cluster", READY, SETTLED, LED, generation=3), PASSES),
    ("was refused, mended", resource("Cluster", ("Ready", "False", "InvalidSpec"), observed=1), PASSES),
    ("refused", resource("Cluster", ("Ready", "False", "InvalidSpec"), CHANGING), FAILED),
    ("object refused", resource("Cluster", ("Ready", "False", "InvalidObject"), CHANGING), FAILED),
    ("setting refused", resource("Cluster", ("Ready", "False", "ConfigNotApplied")), FAILED),
    ("starts", resource("Cluster", ("Ready", "False", "BrokersNotReady"), CHANGING), PASSES),
    ("quota", resource("Cluster", ("Ready", "False", "NotApplied"), CHANGING), PASSES),
    ("rolls", resource("Cluster", READY, CHANGING, LED), PASSES),
    ("unknown", resource("Cluster", ("Ready", "Unknown", "NotAsked"), SETTLED), PASSES),
    ("no leader", resource("Cluster", READY, SETTLED, UNLED), UNWELL),
    ("no leader in a roll", resource("Cluster", READY, CHANGING, UNLED), PASSES),
    ("paused", resource("Cluster", READY, SETTLED, LED, PAUSED), ("Suspended", "Current")),
    (
        "paused and not ready",
        resource("Cluster", ("Ready", "False", "BrokersNotReady"), SETTLED, PAUSED),
        ("Suspended", "InProgress"),
    ),
]
TOPICS: list[Case] = [
    ("healthy", resource("Topic", ("Ready", "True", "Ready")), WELL),
    ("no status", resource("Topic", observed=None), ("Progressing", "Unknown")),
    ("spec not seen", resource("Topic", ("Ready", "True", "Ready"), observed=1), PASSES),
    ("no cluster yet", resource("Topic", ("Ready", "False", "ClusterNotFound")), PASSES),
    ("cluster starts", resource("Topic", ("Ready", "False", "ClusterUnreachable")), PASSES),
    ("brokers to come", resource("Topic", ("Ready", "False", "NotEnoughBrokers")), PASSES),
    ("its predecessor goes", resource("Topic", ("Ready", "False", "Replacing")), PASSES),
    ("Kafka's own error", resource("Topic", ("Ready", "False", "RequestTimedOut")), PASSES),
    *(
        (reason, resource("Topic", ("Ready", "False", reason)), FAILED)
        for reason in ("InvalidSpec", "NotSupported", "ResourceConflict", "NamespaceNotAllowed", *sorted(KAFKA_REASONS))
    ),
    ("copies", resource("Topic", ("Ready", "True", "Ready"), ("Reassigning", "True", "ReplicationFactor")), PASSES),
    ("has copied", resource("Topic", ("Ready", "True", "Ready"), ("Reassigning", "False", "Done")), WELL),
    ("fewer copies than asked for", resource("Topic", ("Ready", "True", "TooFewReplicas")), WELL),
    ("cluster paused", resource("Topic", ("Ready", "False", "ClusterPaused")), ("Suspended", "InProgress")),
    ("paused", resource("Topic", ("Ready", "True", "Ready"), ("Paused", "True", "Paused")), ("Suspended", "Current")),
    ("resumed", resource("Topic", ("Ready", "True", "Ready"), ("Paused", "False", "Resumed")), WELL),
]
USERS: list[Case] = [
    ("healthy", resource("User", ("Ready", "True", "Ready")), WELL),
    ("no status", resource("User", observed=None), ("Progressing", "Unknown")),
    ("spec not seen", resource("User", ("Ready", "True", "Ready"), observed=1), PASSES),
    *(
        (reason, resource("User", ("Ready", "False", reason)), PASSES)
        for reason in (
            "ClusterNotFound",
            "ClusterUnreachable",
            "NoAuthority",
            "NoAddress",
            "PasswordMissing",
            "SecretGoes",
            "AuthorizerComes",
        )
    ),
    *(
        (reason, resource("User", ("Ready", "False", reason)), FAILED)
        for reason in (
            "InvalidSpec",
            "ResourceConflict",
            "NamespaceNotAllowed",
            "NameNotAllowed",
            "NameNotMapped",
            "NoAuthorizer",
            "NoListener",
            "PasswordInvalid",
            "SecretNotOwned",
        )
    ),
    ("cluster paused", resource("User", ("Ready", "False", "ClusterPaused")), ("Suspended", "InProgress")),
]
CASES = {"Cluster": CLUSTERS, "Topic": TOPICS, "User": USERS}


def verdicts(judge: str, check: Any, objects: list[Object]) -> list[tuple[str, str]]:
    """(status, message) of each object, as `judge` (Argo CD, Flux or kstatus) sees them by the health check `check`."""
    program = go_program(ROOT / "tests/peers/gitops_health")
    asked = json.dumps({"judge": judge, "check": check, "objects": objects})
    done = subprocess.run([program], input=asked, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return [(one["status"], one["message"]) for one in json.loads(done.stdout)]


def argo_check(kind: str) -> str:
    """Argo CD's health check in Lua in docs/gitops.md for this kind."""
    return str(CONFIG_MAP["data"][f"resource.customizations.health.ottla.dev_{kind}"])


def flux_check(kind: str) -> dict[str, str]:
    """The CEL expressions for Flux's health checks in docs/gitops.md for this kind."""
    (found,) = (one for one in KUSTOMIZATION["spec"]["healthCheckExprs"] if one["kind"] == kind)
    assert found["apiVersion"] == API_VERSION
    return {name: text for name, text in found.items() if name in ("current", "failed", "inProgress")}


@pytest.mark.parametrize("kind", CASES)
def test_argo_cd_judges_as_the_page_says(kind: str) -> None:
    found = verdicts("argocd", argo_check(kind), [case for _, case, _ in CASES[kind]])
    assert {name: verdict for (name, *_), (verdict, _) in zip(CASES[kind], found, strict=True)} == {
        name: argo for name, _, (argo, _) in CASES[kind]
    }
    said = {name: message for (name, *_), (_, message) in zip(CASES[kind], found, strict=True)}
    assert said["no status"] == "the operator hasn't looked at this spec yet"
    assert said["refused" if kind == "Cluster" else "InvalidSpec"] == "because of InvalidSpec"


@pytest.mark.parametrize("kind", CASES)
def test_flux_judges_as_the_page_says(kind: str) -> None:
    found = verdicts("flux", flux_check(kind), [case for _, case, _ in CASES[kind]])
    assert {name: verdict for (name, *_), (verdict, _) in zip(CASES[kind], found, strict=True)} == {
        name: flux for name, _, (_, flux) in CASES[kind]
    }


def test_without_expressions_ready_and_the_generation_decide_once_there_is_a_status() -> None:
    """kstatus judges as docs/gitops.md says, also in the case that the page warns of."""
    cases = [
        resource("Cluster", READY, SETTLED),
        resource("Cluster", READY, SETTLED, observed=1),
        resource("Cluster", ("Ready", "False", "BrokersNotReady")),
        resource("Cluster", observed=None),
    ]
    assert [verdict for verdict, _ in verdicts("kstatus", None, cases)] == [
        "Current", "InProgress", "InProgress", "Current",
    ]  # fmt: skip


def test_the_checks_name_what_the_operator_writes() -> None:
    source = "".join(path.read_text() for path in (ROOT / "operator/ottla/operator").rglob("*.py"))
    known = set(re.findall(r'"([A-Z]\w+)"', source)) | KAFKA_REASONS
    texts = [argo_check(kind) for kind in CASES] + [text for kind in CASES for text in flux_check(kind).values()]
    named = {word for text in texts for word in re.findall(r"""(?:["']|\b(?=\w+ = true))([A-Z]\w+)""", text)}
    verdicts_of_argo = {"Healthy", "Degraded", "Progressing", "Suspended", "True", "False"}
    assert {"InvalidSpec", "InvalidObject", "ClusterPaused", "PolicyViolation", "PartitionsLed"} <= named
    assert named - verdicts_of_argo <= known
