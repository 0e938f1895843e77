"""One setting: its type, default, bounds and update mode, and the conversion of its values from text and to text.

Pure. `Setting.parse` refuses every value that breaks the setting's type or bounds. Parsing and formatting follow
Kafka's ConfigDef (`parseType`, `convertToString`), so that a file has the same meaning in Ottla as in Kafka.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, IntEnum

from ottla.settings.secret import Secret

Value = bool | int | float | str | tuple[str, ...] | Secret | None
"""The parsed value of a setting. A list is a tuple, and None means that the setting has no value."""


class Kind(IntEnum):
    """Type of a setting; the number is its code in DescribeConfigs responses."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Importance(Enum):
    """The importance of a setting to users, as Kafka states it."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Update(Enum):
    """Whether a broker setting can change while brokers run, and whether for one broker or for the whole cluster."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class InvalidSetting(ValueError):
    """A value that a setting can't take; `reason` starts with a verb ("must be at least 1")."""

    def __init__(self, name: str, value: str, reason: str) -> None:
        super().__init__(f"{name}={value}: {reason}")
        self.name = name
        self.value = value
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Range:
    """A number between two bounds, both included, or the single value in `also`."""

    minimum: float
    maximum: float | None = None
    also: int | None = None

    def __str__(self) -> str:
        text = f"at least {self.minimum}" if self.maximum is None else f"between {self.minimum} and {self.maximum}"
        return text if self.also is None else f"{text}, or {self.also}"

    def violation(self, value: Value) -> str | None:
        """The reason why the value is refused; None if it is accepted."""
        assert isinstance(value, int | float)
        if value == self.also or (value >= self.minimum and (self.maximum is None or value <= self.maximum)):
            return None
        return f"must be {self}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of the texts in `words`."""

    words: tuple[str, ...]
    ignore_case: bool = False

    def __str__(self) -> str:
        return "one of " + ", ".join(self.words) + (" (in any case)" if self.ignore_case else "")

    def violation(self, value: Value) -> str | None:
        """The reason why the value is refused; None if it is accepted."""
        known = value in self.words or (self.ignore_case and str(value).upper() in self.words)
        return None if known else f"must be {self}"


@dataclass(frozen=True, slots=True)
class Members:
    """A list without empty entries. If `words` isn't empty, each entry is one of them. Repeated entries count once
    (KIP-1161)."""

    words: tuple[str, ...] = ()
    may_be_empty: bool = True

    def __str__(self) -> str:
        texts = ["among " + ", ".join(self.words)] if self.words else []
        return ", ".join(texts if self.may_be_empty else [*texts, "at least one"])

    def violation(self, value: Value) -> str | None:
        """The reason why the value is refused; None if it is accepted."""
        assert isinstance(value, tuple)
        if not value and not self.may_be_empty:
            return "must not be empty"
        if "" in value:
            return "must not have empty entries"
        if self.words and any(entry not in self.words for entry in value):
            return "must be among " + ", ".join(self.words)
        return None


@dataclass(frozen=True, slots=True)
class Pattern:
    """A text, or a list of texts, that must match a regular expression. `form` describes the expression in messages."""

    regex: str
    form: str

    def __str__(self) -> str:
        return self.form

    def violation(self, value: Value) -> str | None:
        """The reason why the value is refused; None if it is accepted."""
        entries = value if isinstance(value, tuple) else (str(value),)
        return None if all(re.fullmatch(self.regex, entry) for entry in entries) else f"must look like {self.form}"


Bounds = Range | OneOf | Members | Pattern

INTEGER_BITS = {Kind.SHORT: 16, Kind.INT: 32, Kind.LONG: 64}
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DOUBLE = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)")
_COMMA = re.compile(r"\s*,\s*")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, a row of the tables.

    `default` is a text as in a properties file, or None for no value. `instead` is empty if Ottla honours the setting;
    otherwise it says what Ottla does instead, as the end of the sentence "has no effect: …". `synonyms` are all names
    of the setting, if it has several; the first one that has a value counts. The synonyms of a topic setting are broker
    settings. `internal` settings are for tests: docs/settings.md leaves them out, and DescribeConfigs has them only if
    they are set.
    """

    name: str
    kind: Kind
    default: str | None
    importance: Importance
    doc: str
    bounds: Bounds | None = None
    update: Update = Update.READ_ONLY
    instead: str = ""
    synonyms: tuple[str, ...] = ()
    internal: bool = False

    def parse(self, text: str) -> Value:
        """The typed value of a text. Raises InvalidSetting for a text that breaks the type or the bounds."""
        text = text.strip()
        value = self._typed(text)
        if isinstance(value, tuple) and isinstance(self.bounds, Members):
            value = tuple(dict.fromkeys(value))
        violation = self.bounds.violation(value) if self.bounds is not None else None
        if violation is not None:
            raise InvalidSetting(self.name, text, violation)
        return value

    def _typed(self, text: str) -> Value:
        kind = self.kind
        if kind in INTEGER_BITS:
            bits = INTEGER_BITS[kind]
            if not _INTEGER.fullmatch(text):
                raise InvalidSetting(self.name, text, "must be a whole number")
            number = int(text)
            if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
                raise InvalidSetting(self.name, text, f"must fit in {bits} bits")
            return number
        if kind is Kind.DOUBLE:
            if not _DOUBLE.fullmatch(text):
                raise InvalidSetting(self.name, text, "must be a number")
            return float(text.rstrip("fFdD")) if text[-1:] in "fFdD" else float(text)
        if kind is Kind.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise InvalidSetting(self.name, text, "must be true or false")
            return text.lower() == "true"
        if kind is Kind.LIST:
            return tuple(_COMMA.split(text)) if text else ()
        return Secret(text) if kind is Kind.PASSWORD else text

    @property
    def default_value(self) -> Value:
        """The default, parsed."""
        return None if self.default is None else self._typed(self.default)

    @property
    def sensitive(self) -> bool:
        """Whether the value must never be shown."""
        return self.kind is Kind.PASSWORD


def format_value(value: Value) -> str | None:
    """The text of a value as Kafka prints it (ConfigDef.convertToString)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return _format_double(value)
    return None if value is None else str(value)


def _format_double(value: float) -> str:
    """The text of Java's Double.toString: plain between 10^-3 and 10^7, else one digit, a fraction and an exponent."""
    if not math.isfinite(value):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        plain = format(Decimal(repr(value)), "f")
        return plain if "." in plain else plain + ".0"
    shortest = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(shortest.exponent, int)
    digits = "".join(map(str, shortest.digits))
    return f"{'-' * shortest.sign}{digits[0]}.{digits[1:] or '0'}E{len(digits) - 1 + shortest.exponent}"
