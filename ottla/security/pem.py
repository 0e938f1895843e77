"""PEM texts: the DER of the blocks in them. Pure.

The blocks are found as Kafka finds them: blanks may stand in place of line breaks, as they do in a property of one
line. Source: `DefaultSslEngineFactory.PemStore` of Apache Kafka 4.3, RFC 7468.
"""

from __future__ import annotations

import base64
import binascii
import re
from bisect import bisect_left
from collections import defaultdict
from typing import NamedTuple

# No pattern can match in two ways, so the time grows with the text's length alone, whatever the text is.
_LABEL = r"\s++([A-Z0-9]++(?: ++[A-Z0-9]++)*+)\s*+-"
_BEGIN = re.compile(rf"-BEGIN{_LABEL}++\s++")
_END = re.compile(rf"-END{_LABEL}")


class MalformedPem(ValueError):
    """A block isn't base64 text, or has headers."""


class Block(NamedTuple):
    """A block's label, for instance CERTIFICATE, and its DER."""

    label: str
    der: bytes


def blocks(text: str) -> list[Block]:
    """The blocks of a text, in their order; text between blocks is ignored. Raises MalformedPem."""
    ends: dict[str, list[int]] = defaultdict(list)
    for match in _END.finditer(text):
        ends[match[1]].append(match.start())
    found = []
    behind = 0
    for match in _BEGIN.finditer(text):
        label, start = match[1], match.end()
        candidates = ends[label]
        if match.start() < behind or (index := bisect_left(candidates, start)) == len(candidates):
            continue
        behind = candidates[index]
        body = text[start:behind].rstrip("-")
        if ":" in body:
            raise MalformedPem(f"the block {label} has headers: encrypted keys must be PKCS #8")
        try:
            found.append(Block(label, base64.b64decode("".join(body.split()), validate=True)))
        except (binascii.Error, ValueError):
            raise MalformedPem(f"the block {label} isn't base64 text") from None
    return found
