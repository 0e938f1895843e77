"""The CEL rules of the CRDs about settings, generated from the brokers' own tables of settings. Pure.

The rules refuse at `kubectl apply` the names of unknown settings and of settings that only the operator may give. They
refuse values of a wrong type, values out of bounds, words that a setting doesn't take, and notations that are most
likely mistakes (blanks around a value, `0.5f`, `NaN`). CEL can't suggest the right name for a wrong one. The operator
can: it refuses wrong names, too. It meets them if the CRD is older than the operator. The operator also checks what
these rules don't: patterns, longer lists, and settings that contradict each other.
"""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable
from itertools import permutations

from ottla.operator.spec.broker_config import RESERVED, RESERVED_PREFIX, is_of_the_cluster, is_reserved
from ottla.operator.spec.topic import OWNERSHIP
from ottla.settings.catalogue import BROKER, TOPIC
from ottla.settings.setting import INTEGER_BITS, Kind, Members, OneOf, Range, Setting

LISTENER_PREFIX = "listener.name."
WIDTH = 120
_BEGIN, _END = "# About settings: generated.", "# Generated so far."
_BEGIN_OF_ONE = "# About settings of single brokers: generated."


def with_setting_rules(crd: str, kind: str) -> str:
    """The CRD with its regions of generated rules written anew. `kind`: the plural; only `clusters` and `topics` have
    settings.

    Raises ValueError if the CRD doesn't have each region exactly once.
    """
    for begin, (head, rules) in _BY_KIND.get(kind, {}).items():
        crd = _written(crd, kind, begin, [head, *rules()])
    return crd


def _written(crd: str, kind: str, begin: str, rules: list[str]) -> str:
    def region(found: re.Match[str]) -> str:
        return textwrap.indent("\n".join([begin, *rules, _END]), found["indent"]) + "\n"

    regions = re.compile(
        rf"^(?P<indent> *){re.escape(begin)}\n.*?^(?P=indent){re.escape(_END)}\n", re.MULTILINE | re.DOTALL
    )
    written, count = regions.subn(region, crd)
    if count != 1:
        raise ValueError(f"{kind}: {count} regions begin with {begin!r} and end with {_END!r}, but there has to be one")
    return written


def _of_clusters() -> list[str]:
    reserved = f"{_one_of(RESERVED)} || name.startsWith('{RESERVED_PREFIX}')"
    # A listener's own setting begins with the listener's name. The operator checks the rest of such a name.
    known = f"{_one_of(RESERVED | BROKER.keys())} || name.startsWith('{LISTENER_PREFIX}')"
    return [
        *_refused(reserved, "the operator sets ", " itself; take it out"),
        *_refused(f"!({known})", "brokers have no setting ", _SEE),
        *_of_values(setting for name, setting in BROKER.items() if not is_reserved(name)),
    ]


def _of_single_brokers() -> list[str]:
    """The rule for settings of single brokers, in addition to the rules for settings of all brokers."""
    names = _one_of(name for name in BROKER if is_of_the_cluster(name))
    return _rule(
        f"!self.config.exists(name, {names})",
        f'"config: brokers can\'t differ in " + self.config.filter(name, {names})[0] '
        '+ "; set it in spec.config, for all brokers"',
    )


def _of_topics() -> list[str]:
    # A Topic can set neither Kafka's internal settings nor the setting in which the operator keeps the topic's owner.
    settings = {name: setting for name, setting in TOPIC.items() if not setting.internal and name not in OWNERSHIP}
    return [
        *_refused(f"!({_one_of(settings)})", "topics have no setting ", _SEE),
        *_of_values(settings.values()),
    ]


_SEE = "; docs/settings.md lists the settings"
_HEAD = "x-kubernetes-validations:"
_BY_KIND = {
    "clusters": {_BEGIN: (f"{_HEAD} &settings", _of_clusters), _BEGIN_OF_ONE: (_HEAD, _of_single_brokers)},
    "topics": {_BEGIN: (_HEAD, _of_topics)},
}
_VALUE = "self[name]"
_TRUTHS = ("true", "false", "True", "False", "TRUE", "FALSE")
# The first character is one from '+' to '9'. If such a text is no number, its conversion is an error in CEL.
_LIKE_A_NUMBER = f"(type({_VALUE}) == int || {_VALUE} >= '+' && {_VALUE} < ':')"
_ENUMERATED_WORDS_MAX = 2


def _of_values(settings: Iterable[Setting]) -> list[str]:
    """The rules about values, one for all settings with the same condition.

    Each rule iterates over the names in our tables, not over those in the resource, and its test of a value costs the
    same whatever the value's length. The reason is that the API server estimates the greatest possible cost of a rule,
    and before 1.34 it estimates a value that is a number or a text as three megabytes.
    """
    names: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for setting in settings:
        if (judged := _judged(setting)) is not None:
            names[judged].append(setting.name)
    lines: list[str] = []
    for (fits, must_be), these in sorted(names.items(), key=lambda item: min(item[1])):
        these_names, wrong = _list(sorted(these)), f"name in self && !({fits})"
        lines += _rule(
            f"!{these_names}.exists(name, {wrong})",
            f'"config: " + {these_names}.filter(name, {wrong})[0] + " must be {must_be}"',
        )
        lines.append(f'    message: "config: a value has to be {must_be}"')  # if CEL can't convert the value
    return lines


def _judged(setting: Setting) -> tuple[str, str] | None:
    """The condition that a setting's value has to meet, as a CEL expression and in words; None where only the operator
    checks the value."""
    bounds = setting.bounds
    if setting.kind is Kind.BOOLEAN:
        return f"{_VALUE} in {_list(_TRUTHS)}", "true or false"
    if bits := INTEGER_BITS.get(setting.kind):
        most = (1 << (bits - 1)) - 1
        text = f"a whole number{f', {bounds}' if bounds else ''}"
        if isinstance(bounds, Range):
            return _number("int", bounds.minimum, most if bounds.maximum is None else bounds.maximum, bounds.also), text
        return _number("int", -most, most, None), text
    if setting.kind is Kind.DOUBLE and isinstance(bounds, Range) and bounds.maximum is not None:
        return _number("double", float(bounds.minimum), float(bounds.maximum), bounds.also), f"a number {bounds}"
    if setting.kind is Kind.DOUBLE:
        return f"{_LIKE_A_NUMBER} && type(double({_VALUE})) == double", "a number"
    if isinstance(bounds, OneOf):
        words = {*bounds.words, *(word.lower() for word in bounds.words if bounds.ignore_case)}
        return f"{_VALUE} in {_list(sorted(words))}", str(bounds)
    if isinstance(bounds, Members) and 0 < len(bounds.words) <= _ENUMERATED_WORDS_MAX:
        counts = range(0 if bounds.may_be_empty else 1, len(bounds.words) + 1)
        lists = [words for count in counts for words in permutations(bounds.words, count)]
        texts = {comma.join(words) for words in lists for comma in (",", ", ")}
        return f"{_VALUE} in {_list(sorted(texts))}", str(bounds)
    return None


def _number(type_name: str, least: float, most: float, also: float | None) -> str:
    value = f"{type_name}({_VALUE})"
    between = f"{value} >= {least} && {value} <= {most}"
    return f"{_LIKE_A_NUMBER} && ({between}{'' if also is None else f' || {value} == {also}'})"


def _refused(names: str, before: str, after: str) -> list[str]:
    """A rule that refuses each setting whose name makes the CEL expression `names` true. The rule's message names the
    first of these settings."""
    return _rule(f"!self.exists(name, {names})", f'"config: {before}" + self.filter(name, {names})[0] + "{after}"')


def _rule(expression: str, message: str) -> list[str]:
    return ["  - rule: >-", *_folded(expression), "    messageExpression: >-", *_folded(message)]


def _list(words: Iterable[str]) -> str:
    return "[" + ", ".join(f"'{word}'" for word in words) + "]"


def _one_of(names: Iterable[str]) -> str:
    return f"name in {_list(sorted(names))}"


def _folded(expression: str) -> list[str]:
    """The expression, wrapped into lines that YAML's folded style joins again."""
    wrapped = textwrap.wrap(expression, WIDTH - 30, break_long_words=False, break_on_hyphens=False)
    return [f"      {line}" for line in wrapped]
