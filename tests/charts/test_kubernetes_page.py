"""docs/kubernetes.md explains every condition that the operator writes, and names files and values that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ottla.broker.metrics.catalogue import METRICS
from ottla.operator.kinds import KINDS
from ottla.operator.manifests.values import Value, read_values
from ottla.operator.objects import API_VERSION
from ottla.operator.page import HELP
from tests.peers.tools import ROOT

PAGE = (ROOT / "docs/kubernetes.md").read_text()
OPERATOR = ROOT / "operator/ottla/operator"


def conditions() -> Iterator[str]:
    """The types and reasons of conditions in the operator's source: capitalised words in the arguments of
    `Condition`, and of what conditions are made from."""
    for path in OPERATOR.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                continue
            given = {
                "Condition": call.args[:1] + call.args[2:3],
                "Refusal": call.args[:1],
                "Outcome": call.args[1:2],
                "_Missing": call.args[:1],
            }.get(call.func.id, [])
            for word in (word for part in given for word in ast.walk(part)):
                if isinstance(word, ast.Constant) and isinstance(word.value, str) and word.value[:1].isupper():
                    yield word.value


def test_every_condition_is_explained() -> None:
    found = set(conditions())
    assert {"Ready", "TopicsHeld", "EtcdAway", "ResourceConflict"} <= found
    assert not {word for word in found if f"`{word}`" not in PAGE}


def reasons_of_events() -> Iterator[str]:
    """The reasons of Events in the operator's source: words in the arguments of functions that write Events, and in
    variables that keep reasons for them."""
    for path in OPERATOR.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            parts: list[ast.expr] = []
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", "") or getattr(node.func, "attr", "")
                told = name in ("tell", "_tell", "event", "Restart", "News")
                parts = node.args[:3] if told else [arg for arg in node.args if isinstance(arg, ast.Tuple)]
                if name == "tell" and isinstance(first := node.args[0], ast.Constant):
                    yield str(first.value)  # also a reason of a single word
            elif isinstance(node, ast.Assign) and {getattr(each, "id", "") for each in node.targets} & EVENTS_KEPT_IN:
                parts = [node.value]
            for part in parts:
                for inner in ast.walk(part):
                    word = str(inner.value) if isinstance(inner, ast.Constant) else ""
                    if re.fullmatch(r"([A-Z][a-z]+){2,}", word) and word not in KINDS:
                        yield word


EVENTS_KEPT_IN = {"told", "made", "reason"}


def test_every_event_is_explained() -> None:
    found = set(reasons_of_events())
    assert {"ObjectsMade", "RollingRestart", "TopicAdopted", "TopicReleased", "VolumeGrows", "DrainEnded"} <= found
    assert not {reason for reason in found if f"`{reason}`" not in PAGE}
    _, _, table = PAGE.partition("\n### Events\n")
    named = {reason for row in re.findall(r"^\| (`[^|]*) \|", table, re.M) for reason in re.findall(r"`(\w+)`", row)}
    assert named <= found


def test_every_metric_of_the_operator_is_explained() -> None:
    assert set(re.findall(r"`(ottla_operator_\w+)`", PAGE)) == set(HELP)


def chains(schema: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """The names of a schema's fields, each behind the names of the fields that it is in."""
    if "items" in schema:
        yield from chains(schema["items"])
    for name, inner in schema.get("properties", {}).items():
        yield (name,)
        yield from ((name, *below) for below in chains(inner))
    if isinstance(schema.get("additionalProperties"), dict):
        yield from (("*", *below) for below in chains(schema["additionalProperties"]))


def fields() -> set[tuple[str, ...]]:
    """All chains of field names in the schemas of the resources, and all parts of these chains."""
    found = set()
    for name in ("clusters", "topics", "users"):
        definition = yaml.safe_load((OPERATOR / f"crds/{name}.yaml").read_text())
        for chain in chains(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]):
            found |= {chain[start:end] for start in range(len(chain)) for end in range(start + 1, len(chain) + 1)}
    return found


def test_every_field_that_is_named_is_there() -> None:
    known = fields()
    assert ("brokers", "lostVolumesAfterMinutes") in known
    assert ("storage", "lostVolumesAfterMinutes") not in known
    first = {chain[0] for chain in known} - {"metadata"}  # each resource of Kubernetes has fields in its metadata
    named = {tuple(path.split(".")) for path in re.findall(r"`([a-z]\w+(?:\.[a-zA-Z]\w+)+)[^`]*`", PAGE)}
    fields_named = {path for path in named if path[0] in first} - NO_FIELDS
    assert ("scaling", "throttleBytesPerSecond") in fields_named
    assert not fields_named - known


# A setting of clients, values of the charts, and keys of Secrets.
NO_FIELDS = {
    ("bootstrap", "servers"),
    ("monitoring", "serviceMonitor", "user"),
    ("monitoring", "serviceMonitor", "verify"),
    ("networkPolicy", "create"),
    ("cluster", "brokers", "replicas"),
    ("tls", "crt"),
    ("tls", "key"),
}


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "docs/kubernetes.md", ROOT / "manifests/README.md", *(ROOT / "charts").glob("*/README.md")):
        for target, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
            file = (page.parent / target).resolve() if target else page
            assert file.exists(), f"{page.name}: {target}"
            if heading:
                assert heading in anchors(file), f"{page.name}: {target}#{heading}"


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub derives from a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_keda_is_shown_a_cluster_and_a_metric_that_exist() -> None:
    (shown,) = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.S) if "keda.sh" in block)
    assert shown["spec"]["scaleTargetRef"] == {"apiVersion": API_VERSION, "kind": "Cluster", "name": "flights"}
    (trigger,) = shown["spec"]["triggers"]
    assert re.findall(r"rate\((\w+)\{", trigger["metadata"]["query"])[0] in {metric.name for metric in METRICS}
    assert "keepReplicas=true" in PAGE


def test_values_exist_that_commands_set() -> None:
    known: dict[str, set[str]] = {}
    for chart in ("ottla-operator", "ottla-cluster"):
        values = read_values((ROOT / "charts" / chart / "values.yaml").read_text())
        known[chart] = {path for value in values for path in paths(value)}
    commands = re.findall(r"^helm (?:[^\n]*\\\n)*[^\n]*", PAGE, re.M)
    assert commands
    for command in commands:
        (chart,) = re.findall(r" charts/([a-z-]+)", command)
        for name in re.findall(r"--set ([\w.]+)=", command):
            assert name in known[chart], command


def paths(value: Value) -> Iterator[str]:
    """The path of a chart's value, and the paths of all values below it."""
    yield value.path
    for child in value.children:
        yield from paths(child)
