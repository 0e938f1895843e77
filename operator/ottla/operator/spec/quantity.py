"""Quantities as Kubernetes writes them (500m, 1Gi), and the rule about resources of pods. Pure."""

from __future__ import annotations

import re
from decimal import Decimal

from ottla.operator.objects import Object
from ottla.operator.spec.spec_error import SpecError

_UNITS: dict[str, int | Decimal] = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
    "m": Decimal("1e-3"), "u": Decimal("1e-6"), "n": Decimal("1e-9"),
}  # fmt: skip


def amount(quantity: str) -> float:
    """A quantity of Kubernetes' as a number: of bytes, or of processors. Raises ValueError.

    The units are decimals, so that equal quantities give equal numbers: with floats, 700m and 0.7 would differ.
    """
    match = re.fullmatch(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)([a-zA-Z]*)", quantity.strip())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{quantity!r} is no quantity, such as 500m or 1Gi")
    return float(Decimal(match[1]) * _UNITS[match[2]])


def checked_resources(given: Object, where: str) -> Object:
    """Returns the resources that a spec gives to pods, unchanged. `where`: their place in the spec. Raises SpecError.

    Kubernetes refuses pods that request more of a resource than their limit. No CEL rule of the CRD can check this at
    apply: before 1.34 the API server estimates each quantity as three megabytes of text, and refuses a rule that
    converts the quantities of every pool as too expensive.
    """
    requests, limits = given.get("requests") or {}, given.get("limits") or {}
    for name in sorted(requests.keys() & limits.keys()):
        request, limit = str(requests[name]), str(limits[name])
        try:
            fits = amount(request) <= amount(limit)
        except ValueError as error:
            raise SpecError(f"{where}.resources: {name}: {error}") from None
        if not fits:
            raise SpecError(f"{where}.resources: the request of {name}, {request}, is larger than its limit, {limit}")
    return given
