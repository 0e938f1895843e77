"""Translates Java's regular expressions for names of topics into Python's. Pure.

The option `subscribePattern` has the syntax of java.util.regex, with which Spark's Kafka source matches topics. Syntax
that both languages share is kept. Syntax that only Java has is translated: POSIX classes and properties, quoting by \\Q
and \\E, unions and intersections of character classes, named groups, flags in the middle, and escapes such as \\z and
\\h. Names of topics are ASCII, so a character class is represented by the set of its ASCII characters, and unions,
intersections and negations are exact. A pattern that can't be translated is refused with a message; no pattern matches
other topics than in Java.

Source: the documentation of java.util.regex.Pattern in Java 17.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable

_ASCII = frozenset(map(chr, range(128)))
_DIGIT, _SPACE = frozenset(string.digits), frozenset(" \t\n\x0b\f\r")
_WORD = frozenset(string.ascii_letters + string.digits + "_")
_HORIZONTAL, _VERTICAL = frozenset(" \t"), frozenset("\n\x0b\f\r")
_PREDEFINED = {"d": _DIGIT, "w": _WORD, "s": _SPACE, "h": _HORIZONTAL, "v": _VERTICAL}
_CLASSES = _PREDEFINED | {name.upper(): _ASCII - characters for name, characters in _PREDEFINED.items()}
_LOWER, _UPPER = frozenset(string.ascii_lowercase), frozenset(string.ascii_uppercase)
_PUNCTUATION = frozenset(string.punctuation)
_CONTROL = _ASCII - frozenset(map(chr, range(32, 127)))
_SYMBOLS = frozenset("$+<=>^`|~")
_PROPERTIES = {
    **dict.fromkeys(("lower", "ll", "javalowercase", "islowercase"), _LOWER),
    **dict.fromkeys(("upper", "lu", "javauppercase", "isuppercase"), _UPPER),
    **dict.fromkeys(("ascii", "inbasiclatin", "inbasic_latin", "l1", "isassigned"), _ASCII),
    **dict.fromkeys(("alpha", "l", "lc", "javaletter", "isalphabetic", "isletter", "islatin", "isl"), _LOWER | _UPPER),
    **dict.fromkeys(("digit", "nd", "n", "javadigit", "isdigit"), _DIGIT),
    **dict.fromkeys(("alnum", "javaletterordigit", "isalnum"), _LOWER | _UPPER | _DIGIT),
    "punct": _PUNCTUATION,
    **dict.fromkeys(("p", "ispunctuation"), _PUNCTUATION - _SYMBOLS),
    "s": _SYMBOLS,
    "pd": frozenset("-"),
    "pc": frozenset("_"),
    "graph": _PUNCTUATION | _LOWER | _UPPER | _DIGIT,
    "print": _PUNCTUATION | _LOWER | _UPPER | _DIGIT | {" "},
    "blank": _HORIZONTAL,
    **dict.fromkeys(("cntrl", "cc", "iscontrol"), _CONTROL),
    **dict.fromkeys(("xdigit", "ishex_digit", "ishexdigit"), frozenset(string.hexdigits)),
    **dict.fromkeys(("space", "iswhite_space", "iswhitespace"), _SPACE),
}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_NEVER = "(?!)"
_PLACES = ("^", r"\A", r"\Z", r"\b", r"\B")  # Python accepts a quantifier after one of these only if it is in a group


class Untranslatable(ValueError):
    """The pattern can't be translated: Java refuses it too, or it has syntax that isn't supported here."""


def compiled(pattern: str) -> re.Pattern[str]:
    """A Python pattern whose `fullmatch` accepts the names that Java's `matches` accepts. Raises Untranslatable."""
    translated = _Translation(pattern).whole()
    try:
        return re.compile(translated)
    except (re.error, OverflowError) as error:
        raise Untranslatable(str(error)) from None


class _Translation:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.ignoring_case = False

    def whole(self) -> str:
        found = self._alternatives()
        if self.at < len(self.pattern):
            raise self._refusal("a ) that closes nothing")
        return found

    def _alternatives(self) -> str:
        """Translates the branches of a group, up to its parenthesis or the pattern's end.

        A flag that is set within the group applies to the rest of the group, including its later branches.
        """
        outer = self.ignoring_case
        branches: list[str] = []
        pieces: list[str] = []
        opened = False  # whether a Python group that carries a flag has to be closed
        while self.at < len(self.pattern) and self._here() != ")":
            if self._take("|"):
                branches.append("".join(pieces) + ")" * opened)
                opened = self.ignoring_case != outer
                pieces = [self._flag_group()] if opened else []
                continue
            before = self.ignoring_case
            piece = self._piece()
            if self.ignoring_case != before:
                pieces.append(")" * opened + self._flag_group())
                opened = True
            pieces.append(piece)
        branches.append("".join(pieces) + ")" * opened)
        self.ignoring_case = outer
        return "|".join(branches)

    def _flag_group(self) -> str:
        return "(?i:" if self.ignoring_case else "(?-i:"

    def _piece(self) -> str:
        """Translates one atom with its quantifier."""
        character = self._next()
        if character == "\\":
            if self._take("Q"):
                return self._quoted()
            atom = self._escape()
        elif character == "[":
            atom = _written(self._class())
        elif character == "(":
            atom = self._group()
            if not atom:
                return ""
        elif character in "*+?":
            raise self._refusal(f"a {character} that repeats nothing")
        elif character == "{":
            raise self._refusal("a { that repeats nothing; a brace is written \\{")
        elif character == "$":
            atom = r"\Z"
        elif character in "^.":
            atom = character
        else:
            atom = re.escape(character)
        quantifier = self._quantifier()
        return f"(?:{atom}){quantifier}" if quantifier and atom in _PLACES else atom + quantifier

    def _quantifier(self) -> str:
        if not (matched := re.compile(r"[*+?]|\{\d+(,\d*)?\}").match(self.pattern, self.at)):
            return ""
        self.at = matched.end()
        return matched[0] + next((suffix for suffix in "?+" if self._take(suffix)), "")

    def _quoted(self) -> str:
        end = self.pattern.find("\\E", self.at)
        text = self.pattern[self.at :] if end < 0 else self.pattern[self.at : end]
        self.at = len(self.pattern) if end < 0 else end + 2
        if not text:
            return ""
        return re.escape(text[:-1]) + re.escape(text[-1]) + self._quantifier()

    def _group(self) -> str:
        """Translates a group. Its opening parenthesis was read before. A group that only sets flags becomes ''."""
        opening = "("
        if self._take("?"):
            matched = re.compile(r"[:=!>]|<[=!]|<([a-zA-Z][a-zA-Z0-9]*)>|([a-zA-Z]*)(?:-([a-zA-Z]*))?([:)])").match(
                self.pattern, self.at
            )
            if matched is None:
                raise self._refusal("a group of a kind that Java doesn't know")
            self.at = matched.end()
            if matched[4]:
                flags = self._flags(matched[2], matched[3] or "")
                if matched[4] == ")":
                    self.ignoring_case = flags
                    return ""
                outer, self.ignoring_case = self.ignoring_case, flags
                opening = self._flag_group()
                inner = self._closed()
                self.ignoring_case = outer
                return opening + inner
            opening = f"(?P<{matched[1]}>" if matched[1] else f"(?{matched[0]}"
        return opening + self._closed()

    def _closed(self) -> str:
        inner = self._alternatives()
        if not self._take(")"):
            raise self._refusal("a group that isn't closed")
        return inner + ")"

    def _flags(self, on: str, off: str) -> bool:
        """Whether case is ignored after a group sets the flags `on` and clears the flags `off`.

        Names of topics are one line of ASCII, so the flags d, m, s, u and U don't change what a pattern matches.
        """
        if unknown := set(on + off) - set("idmsuU"):
            raise self._refusal(f"the flag {min(unknown)}, which isn't supported")
        return False if "i" in off else "i" in on or self.ignoring_case

    def _escape(self) -> str:
        """Translates an escape that isn't in a character class. Its backslash was read before."""
        character = self._here()
        same = {
            "A": r"\A",
            "b": r"\b",
            "B": r"\B",
            "Z": r"\Z",
            "z": r"\Z",
            "G": r"\A",
            "R": r"(?:\r\n|[\n-\r])",
            "X": ".",
        }
        if character in same:
            self.at += 1
            if self.pattern[self.at - 1 : self.at + 1] == "b{":
                raise self._refusal("\\b{…}, which isn't supported")
            return same[character]
        if character.isdigit() and character != "0":
            self.at += 1
            return f"(?:\\{character})"
        if character == "k":
            matched = re.compile(r"k<([a-zA-Z][a-zA-Z0-9]*)>").match(self.pattern, self.at)
            if matched is None:
                raise self._refusal("\\k without a name in <>")
            self.at = matched.end()
            return f"(?P={matched[1]})"
        characters = self._escaped()
        return _written(characters) if len(characters) != 1 else re.escape(min(characters))

    def _escaped(self) -> frozenset[str]:
        """The characters that an escape matches. Its backslash was read before."""
        character = self._next()
        if character in _CLASSES:
            return _CLASSES[character]
        if character in "pP":
            named = self._property()
            return _ASCII - named if character == "P" else named
        if character in _CONTROLS:
            return frozenset(_CONTROLS[character])
        numbered: dict[str, tuple[str, Callable[[str], int]]] = {
            "x": (r"([0-9a-fA-F]{2})|\{([0-9a-fA-F]+)\}", lambda text: int(text, 16)),
            "u": (r"([0-9a-fA-F]{4})", lambda text: int(text, 16)),
            "0": (r"([0-3][0-7]{0,2}|[0-7]{1,2})", lambda text: int(text, 8)),
            "c": (r"(.)", lambda text: ord(text) ^ 64),
        }
        if character in numbered:
            form, number = numbered[character]
            matched = re.compile(form).match(self.pattern, self.at)
            if matched is None:
                raise self._refusal(f"\\{character} without a number")
            self.at = matched.end()
            code = number(next(filter(None, matched.groups())))
            if code > 0x10FFFF:
                raise self._refusal(f"\\{character} with a number above 0x10FFFF, the last character")
            return frozenset(chr(code))
        if character.isascii() and character.isalnum():
            raise self._refusal(f"\\{character}, which Java doesn't know or which isn't supported")
        return frozenset(character)

    def _property(self) -> frozenset[str]:
        matched = re.compile(r"\{(\^?)([^}]*)\}|(.)").match(self.pattern, self.at)
        if matched is None:
            raise self._refusal("\\p without a name")
        self.at = matched.end()
        name = (matched[2] or matched[3] or "").rpartition("=")[2]
        found = _PROPERTIES.get(name.lower()) or _PROPERTIES.get(name.lower().removeprefix("is"))
        if found is None:
            raise self._refusal(f"the property {name}, which isn't supported")
        return _ASCII - found if matched[1] else found

    def _class(self) -> frozenset[str]:
        """The characters that a character class matches. Its opening bracket was read before.

        As in Java, a union binds more tightly than the intersection &&, and a ^ at the start negates the whole class.
        """
        negated = self._take("^")
        whole: frozenset[str] | None = None
        union: frozenset[str] = frozenset()
        empty = side_empty = True  # Java ignores an empty operand of &&
        while True:
            if self.at >= len(self.pattern):
                raise self._refusal("a class that isn't closed")
            if self._take("]"):
                if empty:
                    union |= {"]"}
                    empty = side_empty = False
                    continue
                break
            if self.pattern.startswith("&&", self.at):
                self.at += 2
                if not side_empty:
                    whole = union if whole is None else whole & union
                union, side_empty = frozenset(), True
                continue
            empty = side_empty = False
            if self._take("["):
                union |= self._class()
            elif self.pattern.startswith("\\Q", self.at):
                self.at += 2
                end = self.pattern.find("\\E", self.at)
                if end < 0:
                    raise self._refusal("a \\Q in a class without its \\E")
                union |= frozenset(self.pattern[self.at : end])
                self.at = end + 2
            else:
                union |= self._range()
        found = union if whole is None else whole if side_empty else whole & union
        if self.ignoring_case:
            found |= frozenset(character.swapcase() for character in found if character in _LOWER | _UPPER)
        return _ASCII - found if negated else found

    def _range(self) -> frozenset[str]:
        first = self._member()
        follows = self.pattern[self.at + 1 : self.at + 2]
        if len(first) != 1 or self._here() != "-" or follows in ("", "]", "["):
            return first
        self.at += 1
        last = self._member()
        if len(last) != 1 or min(last) < min(first):
            raise self._refusal("a range whose end isn't one character, or is before its beginning")
        return frozenset(character for character in _ASCII if min(first) <= character <= min(last))

    def _member(self) -> frozenset[str]:
        character = self._next()
        return self._escaped() if character == "\\" else frozenset(character)

    def _here(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def _next(self) -> str:
        if self.at >= len(self.pattern):
            raise self._refusal("the pattern's end in the middle of a construct")
        self.at += 1
        return self.pattern[self.at - 1]

    def _take(self, text: str) -> bool:
        if self.pattern.startswith(text, self.at):
            self.at += len(text)
            return True
        return False

    def _refusal(self, what: str) -> Untranslatable:
        return Untranslatable(f"{what} (before position {self.at})")


def _written(characters: frozenset[str]) -> str:
    """A Python character class of exactly these characters, even within a group that ignores case."""
    if not characters:
        return f"(?:{_NEVER})"
    return "(?-i:[" + "".join(f"\\x{ord(character):02x}" for character in sorted(characters & _ASCII)) + "])"
