"""Kubernetes' quantities, and resources that no pod could have."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.operator.spec.quantity import amount, checked_resources
from ottla.operator.spec.spec_error import SpecError


@pytest.mark.parametrize(
    ("text", "number"), [("2Gi", 2 * 2**30), ("1500M", 1.5e9), ("1e3", 1000), ("0.5Ki", 512), ("7", 7), ("500m", 0.5)]
)
def test_amounts(text: str, number: float) -> None:
    assert amount(text) == number


@pytest.mark.parametrize("tenths", range(1, 60))
def test_two_ways_to_write_a_quantity_are_one_number(tenths: int) -> None:
    """Before the fix, a request of 700m was larger than a limit of 0.7, because floats were rounded."""
    given = {"requests": {"cpu": f"{tenths}00m"}, "limits": {"cpu": f"{tenths // 10}.{tenths % 10}"}}
    assert checked_resources(given, "brokers") == given
    assert checked_resources({"requests": given["limits"], "limits": given["requests"]}, "brokers")


@pytest.mark.parametrize("text", ["", ".", "lots", "1.2.3", "1Zi", "-1", "1e9999999"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        amount(text)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"requests": {"cpu": 2}},
        {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "0.5"}},
        {"requests": {"a.example/card": 1}, "limits": {"a.example/card": "1"}},
        {"requests": None, "limits": {"memory": "1Gi"}},
    ],
)
def test_resources_that_a_pod_may_have(given: dict[str, Any]) -> None:
    assert checked_resources(given, "brokers") == given


def test_a_request_that_is_larger_than_its_limit() -> None:
    given = {"requests": {"cpu": 2, "memory": "1Gi"}, "limits": {"cpu": "1500m", "memory": "1Gi"}}
    with pytest.raises(SpecError, match=r"brokers\.resources: the request of cpu, 2, is larger than its limit, 1500m"):
        checked_resources(given, "brokers")


def test_resources_that_an_older_definition_let_through() -> None:
    with pytest.raises(SpecError, match=r"controllers\.resources: memory: 'lots' is no quantity"):
        checked_resources({"requests": {"memory": "lots"}, "limits": {"memory": "1Gi"}}, "controllers")
