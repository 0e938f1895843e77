"""Java's names of TLS cipher suites, and OpenSSL's names of the same suites. Pure.

Source: IANA's registry of TLS cipher suites, whose names Java uses, and openssl-ciphers(1).
"""

from __future__ import annotations

import re

TLS13 = frozenset(("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"))
"""The suites of TLS 1.3, which have the same names in Java and in OpenSSL."""

_NAME = re.compile(
    r"TLS_(?P<exchange>RSA|DHE_RSA|ECDHE_RSA|ECDHE_ECDSA)_WITH_"
    r"(?:(?P<chacha>CHACHA20_POLY1305)_SHA256|(?P<ccm>AES_(?:128|256)_CCM(?:_8)?)"
    r"|(?P<aes>AES_(?:128|256)_(?:GCM|CBC))_(?P<sum>SHA|SHA256|SHA384))"
)


def openssl_name(java_name: str) -> str | None:
    """OpenSSL's name of a suite of TLS 1.2; None for a name that isn't one of a suite that Java and OpenSSL share."""
    match = _NAME.fullmatch(java_name)
    if match is None:
        return None
    exchange = "" if match["exchange"] == "RSA" else match["exchange"].replace("_", "-") + "-"
    if match["chacha"]:
        return f"{exchange}CHACHA20-POLY1305"
    cipher = (match["aes"] or match["ccm"]).replace("AES_", "AES").replace("_CBC", "").replace("_CCM_8", "_CCM8")
    name = exchange + cipher.replace("_", "-")
    return f"{name}-{match['sum']}" if match["aes"] else name
