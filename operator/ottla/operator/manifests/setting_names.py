"""The rules of the CRDs that know the names of settings, written from the brokers' own tables.

Pure. A name that nobody knows is refused at apply, and so is one that the operator gives itself. CEL can't look for the
name that was meant: where a definition is older than the operator, the operator's own refusal does.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

from ottla.operator.spec.cluster import RESERVED, RESERVED_PREFIX
from ottla.operator.spec.topic import OWNERSHIP
from ottla.settings.catalogue import BROKER, TOPIC

LISTENER_PREFIX = "listener.name."
WIDTH = 120
_BEGIN, _END = "# Names of settings: generated.", "# Generated so far."
_REGION = re.compile(
    rf"^(?P<indent> *){re.escape(_BEGIN)}\n.*?^(?P=indent){re.escape(_END)}\n", re.MULTILINE | re.DOTALL
)


def with_setting_names(crd: str, kind: str) -> str:
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
        *_rule(reserved, bad=True, says='"config: the operator sets "', then='" itself; take it out"'),
        *_rule(known, bad=False, says='"config: brokers have no setting "', then=_SEE),
    ]


def _of_topics() -> list[str]:
    # What Kafka keeps for itself is nobody's to set; nor is the operator's mark.
    known = _one_of({name for name, setting in TOPIC.items() if not setting.internal} - OWNERSHIP)
    return _rule(known, bad=False, says='"config: topics have no setting "', then=_SEE)


_SEE = '"; docs/settings.md lists what they have"'
_BY_KIND = {"clusters": _of_clusters, "topics": _of_topics}


def _rule(names: str, *, bad: bool, says: str, then: str) -> list[str]:
    """A rule that refuses names of which the expression holds (`bad`), or of which it doesn't; it names the first."""
    fine, found = (f"!self.exists(name, {names})", names) if bad else (f"self.all(name, {names})", f"!({names})")
    return [
        "  - rule: >-",
        *_folded(fine),
        "    messageExpression: >-",
        *_folded(f"{says} + self.filter(name, {found})[0] + {then}"),
    ]


def _one_of(names: Iterable[str]) -> str:
    return "name in [" + ", ".join(f"'{name}'" for name in sorted(names)) + "]"


def _folded(expression: str) -> list[str]:
    """Lines that YAML folds to the expression again."""
    wrapped = textwrap.wrap(expression, WIDTH - 30, break_long_words=False, break_on_hyphens=False)
    return [f"      {line}" for line in wrapped]
