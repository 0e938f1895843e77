"""The rules of the CRDs about settings, written from the brokers' own tables.

Pure. A name that nobody knows is refused at apply, so is one that the operator gives itself, and so are values of
another type, out of bounds, or none of the words that a setting takes. CEL can't look for the name that was meant:
where a definition is older than the operator, the operator's own refusal does. It also judges what these rules leave
alone: patterns, and settings that contradict each other.
"""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping

from ottla.operator.spec.cluster import RESERVED, RESERVED_PREFIX
from ottla.operator.spec.topic import OWNERSHIP
from ottla.settings.catalogue import BROKER, TOPIC
from ottla.settings.setting import INTEGER_BITS, Kind, Members, OneOf, Range, Setting

LISTENER_PREFIX = "listener.name."
WIDTH = 120
_BEGIN, _END = "# About settings: generated.", "# Generated so far."
_REGION = re.compile(
    rf"^(?P<indent> *){re.escape(_BEGIN)}\n.*?^(?P=indent){re.escape(_END)}\n", re.MULTILINE | re.DOTALL
)


def with_setting_rules(crd: str, kind: str) -> str:
    """The CRD with its region of rules written anew; `kind` is `clusters` or `topics`.

    Raises ValueError where it doesn't have one such region.
    """
    rules = _BY_KIND[kind]()

    def region(found: re.Match[str]) -> str:
        lines = [_BEGIN, "x-kubernetes-validations:", *rules, _END]
        return textwrap.indent("\n".join(lines), found["indent"]) + "\n"

    written, count = _REGION.subn(region, crd)
    if count != 1:
        raise ValueError(f"{kind}: {count} regions begin with {_BEGIN!r} and end with {_END!r}, one is needed")
    return written


def _of_clusters() -> list[str]:
    reserved = f"{_one_of(RESERVED)} || name.startsWith('{RESERVED_PREFIX}')"
    # What a listener has of its own begins with the listener's name: the operator looks at what follows.
    known = f"{_one_of(RESERVED | BROKER.keys())} || name.startsWith('{LISTENER_PREFIX}')"
    return [
        *_refused(reserved, "the operator sets ", " itself; take it out"),
        *_refused(f"!({known})", "brokers have no setting ", _SEE),
        *_of_values(setting for name, setting in BROKER.items() if name not in RESERVED),
    ]


def _of_topics() -> list[str]:
    # What Kafka keeps for itself is nobody's to set; nor is the operator's mark.
    settings = {name: setting for name, setting in TOPIC.items() if not setting.internal and name not in OWNERSHIP}
    return [
        *_refused(f"!({_one_of(settings)})", "topics have no setting ", _SEE),
        *_of_values(settings.values()),
    ]


_SEE = "; docs/settings.md lists what they have"
_BY_KIND = {"clusters": _of_clusters, "topics": _of_topics}
_TEXT = "string(self[name]).trim()"
_WHOLE = "^[+-]?[0-9]+$"
_DOUBLE = r"^[+-]?([0-9]+\\.?[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?$"  # NaN, Infinity and Java's suffixes are left out
# Of more digits CEL makes no number: they are the operator's to judge.
_DIGITS = "^[+-]?[0-9]{1,18}$"


def _of_values(settings: Iterable[Setting]) -> list[str]:
    """The rules about values: of which type, between which bounds, out of which words."""
    kinds: defaultdict[str, list[str]] = defaultdict(list)
    ranges: defaultdict[tuple[str, float, float | None, int | None], list[str]] = defaultdict(list)
    words: defaultdict[str, list[str]] = defaultdict(list)
    for setting in settings:
        kinds[_type(setting.kind)].append(setting.name)
        bounds = setting.bounds
        if isinstance(bounds, OneOf):
            text = f"{_TEXT}.upperAscii()" if bounds.ignore_case else _TEXT
            words[f"{text} in {_list(bounds.words)}"].append(setting.name)
        elif isinstance(bounds, Members) and bounds.words:
            one = rf"\\s*({'|'.join(bounds.words)})\\s*"
            least = "" if not bounds.may_be_empty else "?"
            words[f"{_TEXT}.matches('^({one}(,{one})*){least}$')"].append(setting.name)
        elif bits := INTEGER_BITS.get(setting.kind):
            most = (1 << (bits - 1)) - 1
            span = bounds if isinstance(bounds, Range) else Range(-most - 1)
            if bits < 64 or bounds is not None:
                ranges["int", span.minimum, span.maximum or (most if bits < 64 else None), span.also].append(
                    setting.name
                )
        elif isinstance(bounds, Range):
            ranges["double", bounds.minimum, bounds.maximum, bounds.also].append(setting.name)
    outside = {
        f"{_TEXT}.matches('{_DOUBLE if span[0] == 'double' else _DIGITS}') && !({_within(*span)})": names
        for span, names in sorted(ranges.items(), key=str)
    }
    other = {f"!({fits})": names for fits, names in sorted(words.items())}
    lines: list[str] = []
    for says, fits in _TYPES.items():
        if names := kinds[says]:
            lines += _refused_where({f"!({_TEXT}{fits})": names}, f" must be {says}")
    lines += _refused_where(outside, " is out of bounds; docs/settings.md lists them")
    lines += _refused_where(other, " takes none but the words that docs/settings.md lists")
    return lines


_TYPES = {
    "true or false": ".lowerAscii() in ['true', 'false']",
    "a whole number": f".matches('{_WHOLE}')",
    "a number": f".matches('{_DOUBLE}')",
}


def _type(kind: Kind) -> str:
    if kind in INTEGER_BITS:
        return "a whole number"
    return {Kind.BOOLEAN: "true or false", Kind.DOUBLE: "a number"}.get(kind, "text")


def _within(number: str, least: float, most: float | None, also: int | None) -> str:
    value, point = f"{number}({_TEXT})", ".0" if number == "double" else ""
    text = f"{value} >= {least}{point}"
    if most is not None:
        text += f" && {value} <= {most}{point if most == int(most) else ''}"
    return text if also is None else f"{text} || {value} == {also}{point}"


def _refused(names: str, before: str, after: str) -> list[str]:
    """A rule that refuses names of which the expression holds; it tells the first."""
    return _rule(f"!self.exists(name, {names})", f'"config: {before}" + self.filter(name, {names})[0] + "{after}"')


def _refused_where(cases: Mapping[str, Iterable[str]], after: str) -> list[str]:
    """A rule that refuses settings of which the value is wrong: what is wrong, and of which settings; it tells one.

    It goes through our names, not those of the resource: the API server counts what a rule could cost at most.
    """
    lists = [(f"name in self && {wrong}", _list(sorted(names))) for wrong, names in cases.items()]
    wrong = " || ".join(f"{names}.exists(name, {holds})" for holds, names in lists)
    found = " + ".join(f"{names}.filter(name, {holds})" for holds, names in lists)
    return _rule(f"!({wrong})", f'"config: " + ({found})[0] + "{after}"')


def _rule(expression: str, message: str) -> list[str]:
    return ["  - rule: >-", *_folded(expression), "    messageExpression: >-", *_folded(message)]


def _list(words: Iterable[str]) -> str:
    return "[" + ", ".join(f"'{word}'" for word in words) + "]"


def _one_of(names: Iterable[str]) -> str:
    return f"name in {_list(sorted(names))}"


def _folded(expression: str) -> list[str]:
    """Lines that YAML folds to the expression again."""
    wrapped = textwrap.wrap(expression, WIDTH - 30, break_long_words=False, break_on_hyphens=False)
    return [f"      {line}" for line in wrapped]
