"""JAAS configuration strings, which Kafka's properties carry logins in: `Module flag key="value" …;`. Pure.

Only the text of a property is read, never a JAAS file. The syntax is that of Kafka's JaasConfig, which reads tokens by
Java's StreamTokenizer:

- a bare word has letters, digits, `.`, `-`, `_`, `$` and characters from U+00A0 on, and begins with a letter, `_` or
  `$`; other values stand in single or double quotes;
- in quotes a backslash begins an escape: `\\n`, `\\t`, …, an octal number, or the character itself;
- `//` and `/* */` are comments, and so is everything behind a single `/` up to the end of the line;
- the flag may be in any case, and the semicolon must be there.

Ottla accepts only the login modules of Kafka's own mechanisms: another module would be Java code. A message of this
module never has an option's value, because most values are secrets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTHBEARER_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
KERBEROS_MODULE = "com.sun.security.auth.module.Krb5LoginModule"
MODULES = (PLAIN_MODULE, SCRAM_MODULE, OAUTHBEARER_MODULE, KERBEROS_MODULE)
FLAGS = ("required", "requisite", "sufficient", "optional")

_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_OCTAL = "01234567"


class InvalidJaas(ValueError):
    """A text isn't a JAAS configuration that Ottla can use. The message has no option's value."""


@dataclass(frozen=True, slots=True)
class JaasLogin:
    """A login module with its options. `repr` leaves out the options, because some of them are secrets."""

    module: str
    flag: str
    options: Mapping[str, str] = field(repr=False)


class _Token(NamedTuple):
    text: str
    is_word: bool  # a bare word or a quoted text, and not a single character such as `=`


def parse_jaas(text: str) -> JaasLogin:
    """The only login module in a JAAS configuration. Raises InvalidJaas."""
    tokens = list(_tokens(text))
    if not tokens:
        raise InvalidJaas("names no login module")
    module = tokens[0]
    if not module.is_word or module.text not in MODULES:
        # A text that isn't a module's name may be a password that was given without the rest.
        shown = module.text if module.is_word and module.text.endswith("LoginModule") else "its beginning"
        raise InvalidJaas(f"{shown} isn't one of Kafka's login modules, which are {', '.join(MODULES)}")
    if len(tokens) == 1 or not tokens[1].is_word or tokens[1].text.lower() not in FLAGS:
        raise InvalidJaas(f"needs a flag behind the login module: one of {', '.join(FLAGS)}")
    options, end = _options(tokens, 2)
    if end < len(tokens):
        raise InvalidJaas("has more than one login module, or text behind the semicolon")
    return JaasLogin(module.text, tokens[1].text.lower(), options)


def _options(tokens: list[_Token], position: int) -> tuple[dict[str, str], int]:
    """(the options from `position` on, the position behind the semicolon)."""
    options: dict[str, str] = {}
    while position < len(tokens):
        token = tokens[position]
        if not token.is_word:
            if token.text == ";":
                return options, position + 1
            raise InvalidJaas(f"has a '{token.text}' where a key or a semicolon belongs; are all values in quotes?")
        key = token.text
        given = tokens[position + 1 : position + 3]
        if len(given) < 2 or given[0] != _Token("=", False) or not given[1].is_word:
            name = key if position + 1 < len(tokens) and tokens[position + 1].text == "=" else "an option"
            raise InvalidJaas(f"has no value for {name}; a value that isn't a plain word stands in quotes")
        options[key] = given[1].text
        position += 3
    raise InvalidJaas("doesn't end with a semicolon")


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        character = text[position]
        if character <= " ":
            position += 1
        elif character == "/":
            position = _comment_end(text, position)
        elif character in "\"'":
            quoted, position = _quoted(text, position)
            yield _Token(quoted, True)
        elif _may_begin_word(character):
            start = position
            while position < len(text) and (_may_begin_word(text[position]) or text[position] in "0123456789.-"):
                position += 1
            yield _Token(text[start:position], True)
        else:
            # Java's tokenizer reads numbers, which are no words: a value that begins with a digit needs quotes.
            yield _Token(character, False)
            position += 1


def _may_begin_word(character: str) -> bool:
    return (character.isascii() and character.isalpha()) or character in "_$" or character >= "\xa0"


def _comment_end(text: str, position: int) -> int:
    if text.startswith("/*", position):
        end = text.find("*/", position + 2)
        if end < 0:
            raise InvalidJaas("has a comment without an end")
        return end + 2
    while position < len(text) and text[position] not in "\r\n":
        position += 1
    return position


def _quoted(text: str, start: int) -> tuple[str, int]:
    """(the content of the quotes at `start`, the position behind the closing one)."""
    quote, position = text[start], start + 1
    parts: list[str] = []
    while position < len(text) and text[position] not in "\r\n":
        character = text[position]
        position += 1
        if character == quote:
            return "".join(parts), position
        if character == "\\" and position < len(text):
            character, position = _escaped(text, position)
        parts.append(character)
    raise InvalidJaas("has an opening quote without a closing one in the same line")


def _escaped(text: str, position: int) -> tuple[str, int]:
    """(the character of the escape whose first character behind the backslash is at `position`, the position behind
    it)."""
    first = text[position]
    if first not in _OCTAL:
        return _ESCAPES.get(first, first), position + 1
    most = 3 if first <= "3" else 2
    end = position
    while end < min(position + most, len(text)) and text[end] in _OCTAL:
        end += 1
    return chr(int(text[position:end], 8)), end
