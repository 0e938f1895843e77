"""Addresses as Java's getHostAddress writes them."""

from __future__ import annotations

import pytest

from ottla.broker.authorization.addresses import as_java


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("2001:db8::ff00:42", "2001:db8:0:0:0:0:ff00:42"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1%eth0"),
        ("a-test", "a-test"),
    ],
)
def test_an_address_has_javas_text(host: str, text: str) -> None:
    assert as_java(host) == text
