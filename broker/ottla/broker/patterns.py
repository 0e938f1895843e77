"""The regular expressions that clients send: those of RE2, which Kafka uses by its Java twin RE2J.

RE2 matches in a time that is linear in the text's length, whatever the expression. Python's own `re` isn't an
alternative: with a few characters a client could keep the event loop busy for hours, and `re` accepts constructs that
Kafka refuses, such as look-ahead.

RE2J differs in two escapes: it refuses \\C (one byte), and it takes a backslash before any character that isn't ASCII.
To read an expression takes longer than to match a name with it: 0.1 s where 2,000 characters are mostly classes such as
\\pL. Hence the limit of its length.

Source: KIP-848, KIP-1152; the syntax of RE2.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import re2

from ottla.protocol.errors import ErrorCode, KafkaError

PATTERN_LENGTH_MAX = 2_000
_MEMORY_MAX_BYTES = 2 << 20  # of one expression
_escapes = re.compile(r"\\Q.*?(?:\\E|\Z)|\\(.)", re.DOTALL)


def matcher(pattern: str) -> Callable[[str], bool]:
    """Returns a function that tells whether a whole text matches `pattern`. Raises KafkaError
    INVALID_REGULAR_EXPRESSION, also where the pattern has more than `PATTERN_LENGTH_MAX` characters."""
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise _invalid(f"the expression has {len(pattern)} characters, and may have {PATTERN_LENGTH_MAX}")
    try:
        compiled = re2.compile(_escapes.sub(_as_in_java, pattern).encode(), _options())
    except re2.error as error:
        (reason,) = error.args
        raise _invalid(reason.decode(errors="replace")) from None
    finally:
        re2.purge()  # the library would keep the last 128 expressions, each with its memory
    return lambda text: compiled.fullmatch(text.encode()) is not None


def _as_in_java(escape: re.Match[str]) -> str:
    """An escape or a quotation of RE2J in RE2's syntax."""
    if escape[1] == "C":
        raise _invalid(r"\C isn't supported")
    return escape[1] if escape[1] and not escape[1].isascii() else escape[0]


def _options() -> re2.Options:
    options = re2.Options()
    options.never_capture = True
    options.max_mem = _MEMORY_MAX_BYTES
    options.log_errors = False
    return options


def _invalid(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_regular_expression, f"the regular expression can't be used: {reason}")
