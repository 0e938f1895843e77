"""PEM texts: the DER of the blocks in them. Pure.

The blocks are found as Kafka finds them: blanks may stand in place of line breaks, as they do in a property of one
line. Source: `DefaultSslEngineFactory.PemStore` of Apache Kafka 4.3, RFC 7468.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import NamedTuple

_BLOCK = re.compile(r"-+BEGIN\s+([A-Z0-9 ]+?)\s*-+\s+(.*?)-+END\s+\1\s*-+", re.DOTALL)


class MalformedPem(ValueError):
    """A block isn't base64 text, or has headers."""


class Block(NamedTuple):
    """A block's label, for instance CERTIFICATE, and its DER."""

    label: str
    der: bytes


def blocks(text: str) -> list[Block]:
    """The blocks of a text, in their order; text between blocks is ignored. Raises MalformedPem."""
    found = []
    for match in _BLOCK.finditer(text):
        if ":" in match[2]:
            raise MalformedPem(f"the block {match[1]} has headers: encrypted keys must be PKCS #8")
        try:
            found.append(Block(match[1], base64.b64decode("".join(match[2].split()), validate=True)))
        except (binascii.Error, ValueError):
            raise MalformedPem(f"the block {match[1]} isn't base64 text") from None
    return found
