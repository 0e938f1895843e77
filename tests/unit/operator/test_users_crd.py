"""The CRD of Users agrees with the operator: operations, quotas, defaults, and a description of each field."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ottla.operator.spec.user import OPERATIONS, QUOTAS, RENEWAL_DAYS, RESOURCES, VALIDITY_DAYS, Login
from ottla.protocol.rights import AclOperation, ResourceType, supported_operations

CRD = Path(__file__).parents[3] / "operator/ottla/operator/crds/users.yaml"
SCHEMA = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
SPEC = SCHEMA["properties"]["spec"]["properties"]
ACL = SPEC["authorization"]["properties"]["acls"]["items"]


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field below a schema."""
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from fields(field, f"{path}.{name}")
    if "items" in schema:
        yield f"{path}[]", schema["items"]
        yield from fields(schema["items"], f"{path}[]")


def ours() -> list[tuple[str, dict[str, Any]]]:
    return [(path, field) for path, field in fields(SCHEMA) if path.startswith((".spec", ".status"))]


def test_the_words_are_those_that_the_operator_reads() -> None:
    assert set(ACL["properties"]["operations"]["items"]["enum"]) == OPERATIONS.keys()
    assert set(ACL["properties"]["resource"]["properties"]["type"]["enum"]) == RESOURCES.keys()
    assert set(RESOURCES.values()) == set(ResourceType)
    assert SPEC["quotas"]["properties"].keys() == QUOTAS.keys()
    assert SPEC["authentication"]["properties"]["type"]["enum"] == [login.value for login in Login]


def test_every_operation_that_a_rule_can_be_about_has_a_word() -> None:
    supported = {operation for kind in ResourceType for operation in supported_operations(kind)}
    assert set(OPERATIONS.values()) == supported | {AclOperation.ALL}


@pytest.mark.parametrize("kind", RESOURCES)
def test_a_resource_has_the_operations_that_brokers_know_for_it(kind: str) -> None:
    (rule,) = (each for each in ACL["x-kubernetes-validations"] if f"!= '{kind}'" in each["rule"])
    words = set(re.findall(r"'(\w+)'", rule["rule"].partition(" in ")[2]))
    supported = supported_operations(RESOURCES[kind]) | {AclOperation.ALL}
    assert words == {word for word, operation in OPERATIONS.items() if operation in supported}
    assert words == set(rule["message"].partition(" has ")[2].split(", "))


def test_defaults_are_those_of_the_operator() -> None:
    (rule,) = (each["rule"] for each in SPEC["authentication"]["x-kubernetes-validations"] if "<" in each["rule"])
    assert re.findall(r": (\d+)\)", rule) == [str(RENEWAL_DAYS), str(VALIDITY_DAYS)]


def test_kubectl_explain_has_a_word_on_every_field() -> None:
    assert not [path for path, field in ours() if not field.get("description") and not path.endswith("[]")]


def test_everything_has_a_maximum() -> None:
    """Without a maximum, the API server estimates the cost of a CEL rule as if the value filled the whole request."""
    for path, field in ours():
        bound = {"string": "maxLength", "array": "maxItems"}.get(field.get("type", ""))
        if bound and "enum" not in field and field.get("format") != "date-time":
            assert bound in field, path
