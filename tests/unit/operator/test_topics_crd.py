"""The CRD of Topics agrees with the operator: names of settings, defaults, bounds, and a description of each field."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ottla.operator.spec.topic import INTERNAL, OWNERSHIP, PARTITIONS_MAX
from ottla.settings.catalogue import TOPIC

CRD = Path(__file__).parents[3] / "operator/ottla/operator/crds/topics.yaml"
VERSION = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
SPEC = SCHEMA["properties"]["spec"]["properties"]


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field below a schema."""
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from fields(field, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if name in schema:
            yield f"{path}[]", schema[name]
            yield from fields(schema[name], f"{path}[]")


def ours() -> list[tuple[str, dict[str, Any]]]:
    return [(path, field) for path, field in fields(SCHEMA) if path.startswith((".spec", ".status"))]


def test_settings_are_those_of_the_brokers() -> None:
    rule, *_ = SPEC["config"]["x-kubernetes-validations"]
    for part in ("rule", "messageExpression"):
        names = set(re.findall(r"'([a-z0-9.]+)'", rule[part]))
        assert names == {name for name, setting in TOPIC.items() if not setting.internal} - OWNERSHIP


def test_internal_topics_are_refused_by_name() -> None:
    rules = " ".join(rule["rule"] for rule in SPEC["topicName"]["x-kubernetes-validations"])
    assert all(f"'{name}'" in rules for name in INTERNAL)
    assert SPEC["partitions"]["maximum"] == PARTITIONS_MAX


def test_kubectl_explain_has_a_word_on_every_field() -> None:
    assert not [path for path, field in ours() if not field.get("description") and not path.endswith("[]")]


def test_everything_has_a_maximum() -> None:
    """Without a maximum, the API server estimates the cost of a CEL rule as if the value filled the whole request."""
    for path, field in ours():
        bound = {"string": "maxLength", "array": "maxItems"}.get(field.get("type", ""))
        free = "additionalProperties" in field
        if bound and "enum" not in field and field.get("format") != "date-time":
            assert bound in field, path
        assert not free or "maxProperties" in field, path
