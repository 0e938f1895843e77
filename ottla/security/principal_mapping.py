"""`ssl.principal.mapping.rules`: from a certificate's distinguished name to a user's name. Pure.

The rules are tried in their order. `RULE:pattern/replacement/` applies to a name that the pattern matches as a whole;
`L` or `U` behind it makes the result lower or upper case. `DEFAULT` takes the name as it is. A name to which no rule
applies is nobody's, and the connection is refused.

Patterns are Java's. Python's module `re` runs them, so a pattern with syntax that `re` lacks, or understands in another
way, is refused when the rules are read. Source: `SslPrincipalMapper` of Apache Kafka 4.3, KIP-371.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_RULE = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER = re.compile(rf"\s*({_RULE})\s*(,\s*|$)")
_PARSER = re.compile(_RULE)
_BACK_REFERENCE = re.compile(r"\$([0-9]+)")
_LINE_ENDS = "\\n\\r\\x85\\u2028\\u2029"
_ANY = f"[^{_LINE_ENDS}]"  # Java's dot; Python's excludes \n alone
_END = f"(?=(?:\\r\\n|[{_LINE_ENDS}])?\\Z)"  # Java's dollar
_SHARED_ESCAPES = re.compile(r"\\(?:[dDwWsSAtnrf1-9]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[^A-Za-z0-9])")
_SHARED_GROUPS = re.compile(r"\((?!\?)|\(\?(?:[:=!>]|<[=!])")
_NAMED_GROUP = re.compile(r"\(\?<([A-Za-z][A-Za-z0-9]*)>")
_CLASS = re.compile(r"\[\^?[^\]\[^](?:\\.|[^\\\]\[])*\]|\[\^?\\.(?:\\.|[^\\\]\[])*\]", re.DOTALL)
_IGNORE_CASE = "(?i)"


class InvalidRules(ValueError):
    """The setting's value isn't a list of rules."""


class NoRuleMatches(ValueError):
    """No rule applies to a distinguished name."""


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str] | None  # None: the rule DEFAULT
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        text = self.pattern.sub(lambda match: _expanded(self.replacement, match), name)
        return text.lower() if self.case == "L" else text.upper() if self.case == "U" else text


class MappingRules:
    """The rules of one listener. Raises InvalidRules for a text that has none."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._rules = tuple(rule for part in _split(text) if (rule := _parsed(part)) is not None)

    def user_name(self, distinguished_name: str) -> str:
        """The user's name of a certificate's distinguished name. Raises NoRuleMatches."""
        for rule in self._rules:
            name = rule.apply(distinguished_name)
            if name is not None:
                return name
        raise NoRuleMatches(f"no rule of ssl.principal.mapping.rules applies to {distinguished_name}")


def _split(text: str) -> list[str]:
    return [match[1] for match in _SPLITTER.finditer(text.strip())]


def _parsed(text: str) -> _Rule | None:
    match = _PARSER.fullmatch(text)
    lazily = _PARSER.match(text)
    if match is None or lazily is None or lazily.end() != len(text):
        raise InvalidRules(f"the rule '{text}' can't be read: RULE:pattern/replacement/ or DEFAULT is wanted")
    if match[1] is not None:
        return _Rule(None, "", "")
    if match[2] is None:
        return None  # an empty rule is ignored
    pattern = _compiled(match[2])
    _check_references(match[3], pattern.groups)
    return _Rule(pattern, _literal_references(match[3], pattern.groups), match[4])


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(_translated(pattern), re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidRules(f"the pattern '{pattern}' is no regular expression: {error}") from None


def _translated(pattern: str) -> str:
    """The same pattern for Python. Raises InvalidRules for syntax that `re` lacks, or reads in another way."""
    written = []
    position = 0
    if pattern.startswith(_IGNORE_CASE):
        written.append(_IGNORE_CASE)
        position = len(_IGNORE_CASE)
    while position < len(pattern):
        char = pattern[position]
        match: re.Match[str] | None
        if char == "\\":
            match = _SHARED_ESCAPES.match(pattern, position)
            text = match[0] if match else ""
        elif char == "[":
            match = _CLASS.match(pattern, position)
            if match and ("&&" in match[0] or not all(map(_SHARED_ESCAPES.fullmatch, re.findall(r"\\.", match[0])))):
                match = None
            text = match[0] if match else ""
        elif char == "(":
            match = _SHARED_GROUPS.match(pattern, position) or _NAMED_GROUP.match(pattern, position)
            text = f"(?P<{match[1]}>" if match and match.re is _NAMED_GROUP else match[0] if match else ""
        else:
            written.append({".": _ANY, "$": _END}.get(char, char))
            position += 1
            continue
        if match is None:
            raise InvalidRules(
                f"the pattern '{pattern}' has syntax of Java's patterns that Ottla lacks: {pattern[position:]}"
            )
        written.append(text)
        position = match.end()
    return "".join(written)


def _literal_references(replacement: str, groups: int) -> str:
    """The replacement with a backslash before each reference to a group that the pattern lacks (Kafka's
    `escapeLiteralBackReferences`). Java reads `$12` as group 1 and the digit 2 if there is no group 12."""

    def literal(match: re.Match[str]) -> str:
        number = int(match[1][:9])
        while number > groups and number >= 10:
            number //= 10
        return f"\\{match[0]}" if number > groups and not match[1].startswith("0") else match[0]

    return _BACK_REFERENCE.sub(literal, replacement) if groups else replacement


def _check_references(replacement: str, groups: int) -> None:
    """Raises InvalidRules for a replacement with which Java's `replaceAll` would fail at each name."""
    position = 0
    while position < len(replacement):
        char = replacement[position]
        if char == "\\":
            if position + 1 == len(replacement):
                raise InvalidRules(f"the replacement '{replacement}' ends with a backslash")
            position += 2
            continue
        if char == "$":
            following = replacement[position + 1 : position + 2]
            if not (following.isascii() and following.isdigit()):
                raise InvalidRules(f"the replacement '{replacement}' has a $ without a group's number: write \\$")
            if not groups and following != "0":
                raise InvalidRules(f"the replacement '{replacement}' names a group that its pattern lacks")
        position += 1


def _expanded(replacement: str, match: re.Match[str]) -> str:
    """The replacement for one match, by the rules of Java's `Matcher.appendReplacement`."""
    groups = match.re.groups
    written = []
    position = 0
    while position < len(replacement):
        char = replacement[position]
        position += 1
        if char == "\\":
            written.append(replacement[position])
            position += 1
        elif char == "$":
            number = int(replacement[position])
            position += 1
            while position < len(replacement) and replacement[position] in "0123456789":
                longer = 10 * number + int(replacement[position])
                if longer > groups:
                    break
                number = longer
                position += 1
            written.append(match[number] or "")
        else:
            written.append(char)
    return "".join(written)
