"""The files that are generated from the CRDs and the charts are up to date, and hand-written files agree with the CRDs
and the charts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ottla.broker.metrics.catalogue import METRICS
from ottla.operator import app
from ottla.operator.found import OWNED, PRUNED
from ottla.operator.kinds import KINDS
from ottla.operator.manifests.__main__ import CRDS, generated_files
from ottla.operator.manifests.crds import chart_template, fields_table, json_schema
from ottla.operator.manifests.dashboard import ROWS, queries
from ottla.operator.manifests.setting_rules import with_setting_rules
from ottla.operator.manifests.values import read_values, values_schema, values_table
from ottla.operator.objects import Ref
from ottla.operator.page import HELP, Page, Watched
from ottla.operator.queue import Queue, Result
from tests.peers.tools import ROOT

CLUSTER_ALERTS = ROOT / "charts/ottla-cluster/alerts/cluster.yaml"
OPERATOR_ALERTS = ROOT / "charts/ottla-operator/alerts/operator.yaml"
# Metrics that Prometheus itself, the kubelet and etcd serve.
ELSEWHERE = re.compile(r"^(up|kubelet_volume_stats_(available|capacity|used)_bytes|etcd_\w+)$")


@pytest.mark.parametrize("path", generated_files(ROOT), ids=str)
def test_file_is_up_to_date(path: Path) -> None:
    assert (ROOT / path).read_text() == generated_files(ROOT)[path], "run `make docs`"


def test_a_definition_without_a_place_for_settings_names_is_told() -> None:
    with pytest.raises(ValueError, match="0 regions"):
        with_setting_rules("spec: {}\n", "clusters")


@pytest.mark.parametrize("kind", ["clusters", "topics", "users"])
def test_no_comma_has_cut_a_description_in_two(kind: str) -> None:
    """In `{type: string, description: Why, in a word.}` YAML takes the text after the second comma for another key, and
    no parser objects."""

    def empty(part: Any, path: str) -> Iterator[str]:
        for name, inner in (
            part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
        ):
            if inner is None:
                yield f"{path}.{name}"
            yield from empty(inner, f"{path}.{name}")

    assert list(empty(yaml.safe_load((CRDS / f"{kind}.yaml").read_text()), kind)) == []


def test_version_is_that_of_the_package() -> None:
    project = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert project is not None
    for chart in ("ottla-operator", "ottla-cluster"):
        assert yaml.safe_load((ROOT / "charts" / chart / "Chart.yaml").read_text())["appVersion"] == project[1]


def expressions() -> list[str]:
    """Every query of the alerts and of the dashboard."""
    found = [query for _, row in ROWS for panel in row for query in queries(panel).values()]
    for path in (CLUSTER_ALERTS, OPERATOR_ALERTS):
        found += [rule["expr"] for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]
    return found


def series() -> set[str]:
    """The names of the metrics that brokers and the operator serve."""
    names = {metric.name for metric in METRICS}
    names |= {f"{metric.name}{suffix}" for metric in METRICS for suffix in ("_bucket", "_sum", "_count")}
    page = Page({"Cluster": Queue("Cluster", Idle(), 1)}, Watched(), lambda: 0)
    return names | set(re.findall(r"^(ottla_\w+)", page.text(), re.M)) | set(HELP)


class Idle:
    """A reconciler that does nothing."""

    async def reconcile(self, key: Ref) -> Result:
        return Result()


@pytest.mark.parametrize("query", expressions())
def test_alerts_and_dashboard_name_metrics_that_exist(query: str) -> None:
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]|\bby \([^)]*\)", " ", query)
    named = {name for name in re.findall(r"[a-z][a-z0-9_]+(?![a-z0-9_]*\s*\()", bare) if "_" in name or name == "up"}
    named -= {"predict_linear", "histogram_quantile"}
    assert named
    assert not {name for name in named - series() if not ELSEWHERE.match(name)}


def allowed_verbs() -> set[tuple[str, str]]:
    """The rights that the chart grants the operator, as (verb, resource)."""
    allowed: set[tuple[str, str]] = set()
    golden = ROOT / "tests/charts/golden/ottla-operator/default.yaml"
    for role in yaml.safe_load_all(golden.read_text()):
        for rule in (
            (role or {}).get("rules", ()) if role and not role["metadata"]["name"].endswith(("view", "edit")) else ()
        ):
            allowed |= {(verb, resource) for verb in rule["verbs"] for resource in rule["resources"]}
    return allowed


def test_the_operator_may_not_look_around_among_secrets_nor_delete_any() -> None:
    assert {verb for verb, resource in allowed_verbs() if resource == "secrets"} == {"get", "create", "patch"}


def test_what_is_watched_is_what_the_operator_watches() -> None:
    watched = {resource for verb, resource in allowed_verbs() if verb == "watch"}
    assert watched == {"clusters", "topics", "users", *app.OWNED}


def test_the_operator_may_do_what_it_does() -> None:
    """The chart grants each verb and kind that the operator's source names, and get, create and patch for the kinds
    that it applies."""
    allowed = allowed_verbs()
    verbs = {"merge": "patch"}
    done: set[tuple[str, str]] = set()
    for path in (ROOT / "operator/ottla/operator").rglob("*.py"):
        text = path.read_text()
        for verb, kind in re.findall(r"kube\.(get|list|merge|delete)\(\s*\"(\w+)\"", text):
            status = "/status" if (verb, kind) == ("merge", "Topic") else ""
            done.add((verbs.get(verb, verb), KINDS[kind].plural + status))
        if "/plan/" in str(path) or path.stem in ("certificates", "etcd"):
            for kind in set(re.findall(r"\"kind\": \"(\w+)\"", text)) & {*OWNED, "Secret", "PersistentVolumeClaim"}:
                done |= {(verb, KINDS[kind].plural) for verb in ("get", "create", "patch")}
        for plural in app.OWNED:
            done |= {(verb, plural) for verb in ("list", "watch")}
    done |= {("delete", KINDS[kind].plural) for kind in PRUNED} | {("list", KINDS[kind].plural) for kind in OWNED}
    assert ("patch", "pods") in done
    assert done <= allowed
    # For resources without a namespace, the operator has no rights but the ones that it uses.
    wide = {"nodes", "namespaces", "customresourcedefinitions"}
    assert {right for right in allowed if right[1] in wide} == {right for right in done if right[1] in wide}


def test_a_key_without_a_comment_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"line 4: b\.c has no comment"):
        read_values("# A.\na: 1\nb:\n  c: 2\n")


def test_values_make_a_table_and_a_schema() -> None:
    values = read_values(
        '# First.\na:\n  # How\n  # many.\n  # @schema {"minimum": 1}\n  b: 3\n# Any | keys.\nc: {}\n# A list.\nd: []\n'
    )
    assert values_table(values).splitlines()[2:] == [
        "| `a.b` | `3` | How many. |",
        r"| `c` | `{}` | Any \| keys. |",
        "| `d` | `[]` | A list. |",
    ]
    schema = values_schema(values)
    assert schema["additionalProperties"] is False
    assert schema["properties"]["a"]["properties"]["b"] == {"type": "integer", "description": "How many.", "minimum": 1}
    assert schema["properties"]["a"]["additionalProperties"] is False
    assert "additionalProperties" not in schema["properties"]["c"]


def test_a_crd_becomes_a_template_that_says_what_it_said() -> None:
    crd = "kind: X\nmetadata:\n  name: xs.ottla.dev\nspec: {text: 'a {{b}} c'}\n"
    template = chart_template(crd, "x.yaml")
    assert """{text: 'a {{ "{{" }}b{{ "}}" }} c'}""" in template
    assert template.count("helm.sh/resource-policy: keep") == 1
    with pytest.raises(ValueError, match="has to be a name"):
        chart_template("metadata:\n  name: xs.ottla.dev\n  labels: {}\n", "x.yaml")


def test_a_structural_schema_becomes_one_without_other_keys() -> None:
    structural: dict[str, Any] = {
        "type": "object",
        "required": [],
        "properties": {
            "size": {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "description": "As in a | Pod."},
            "list": {
                "type": "array",
                "items": {"type": "object", "properties": {"x": {"type": "boolean", "default": False}}},
            },
        },
    }
    made = json_schema(structural)
    assert made == {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "size": {"type": ["integer", "string"]},
            "free": {"type": "object", "description": "As in a | Pod."},
            "list": {
                "type": "array",
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"x": {"type": "boolean", "default": False}},
                },
            },
        },
    }
    structural["properties"]["more"] = structural["properties"]["list"]
    assert fields_table(structural).splitlines()[2:] == [
        "| `size` |  |",
        r"| `free` | As in a \| Pod. |",
        "| `list` |  |",
        "| `list[].x` |  Default: False. |",
        "| `more` |  Its fields are those of `list`. |",
    ]


def test_every_field_of_a_resource_is_described() -> None:
    silent: list[str] = []

    def look(schema: dict[str, Any], path: str) -> None:
        for name, field in schema.get("properties", {}).items():
            if "description" not in field:
                silent.append(f"{path}.{name}")
            look(field, f"{path}.{name}")
            look(field.get("items", {}), f"{path}.{name}[]")

    for file in CRDS.glob("*.yaml"):
        (version,) = yaml.safe_load(file.read_text())["spec"]["versions"]
        root = version["schema"]["openAPIV3Schema"]
        look({"properties": {name: root["properties"][name] for name in ("spec", "status")}}, file.stem)
    assert not silent


def test_strings_and_lists_have_a_maximum() -> None:
    """Without a maximum the API server can't bound the cost of rules over a string or a list."""
    endless: list[str] = []

    def look(schema: Any, path: str) -> None:
        if not isinstance(schema, dict):
            return
        bound = {"string": "maxLength", "array": "maxItems"}.get(schema.get("type", ""))
        if bound and bound not in schema and not {"enum", "format"} & set(schema):
            endless.append(path)
        if isinstance(schema.get("additionalProperties"), dict) and "maxProperties" not in schema:
            endless.append(path)
        for name, field in schema.get("properties", {}).items():
            look(field, f"{path}.{name}")
        look(schema.get("items"), f"{path}[]")
        look(schema.get("additionalProperties"), f"{path}.*")

    for file in CRDS.glob("*.yaml"):
        (version,) = yaml.safe_load(file.read_text())["spec"]["versions"]
        look(version["schema"]["openAPIV3Schema"]["properties"]["spec"], file.stem)
    assert not endless


def test_the_dashboard_is_json_that_grafana_reads() -> None:
    dashboard = json.loads((ROOT / "charts/ottla-operator/dashboards/ottla.json").read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    for index, one in enumerate(places):
        assert one["x"] + one["w"] <= 24
        for other in places[index + 1 :]:
            apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
            assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
