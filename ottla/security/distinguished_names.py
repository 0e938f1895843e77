"""The text of a certificate's distinguished name, as Java writes it. Pure.

Kafka makes a client's principal of this text, and ACLs name the principal. So the text must be Java's to the letter:
`cryptography`'s RFC 4514 text has other keywords and other escapes. The most specific part comes first. Nine types of
attributes have keywords; others are written as dotted numbers with the value's DER in hexadecimal digits.

Source: `X500Name.getRFC2253Name` and `AVA.toRFC2253String` of OpenJDK 17, which `X500Principal.getName` calls.
"""

from __future__ import annotations

from ottla.security.der import OBJECT_IDENTIFIER, SEQUENCE, SET, MalformedDer, elements, object_identifier, only

_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
# UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString. Java decodes the bytes of all of them as
# UTF-8, also those of a BMPString, which are UTF-16.
_TEXTS = frozenset((0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E))
_ESCAPED = frozenset(',=+<>#;"\\')
_BLANKS = " \r"


def subject_name(certificate: bytes) -> bytes:
    """The DER of the subject's name in a DER certificate. Raises MalformedDer."""
    outer = elements(only(certificate, SEQUENCE).content)
    if not outer or outer[0].tag != SEQUENCE:
        raise MalformedDer("not a certificate")
    fields = elements(outer[0].content)
    if fields and fields[0].tag == 0xA0:  # the version, which certificates of version 1 lack
        del fields[0]
    if len(fields) < 5 or fields[4].tag != SEQUENCE:
        raise MalformedDer("not a certificate")
    return fields[4].encoded  # after serial number, algorithm, issuer and validity


def java_text(name: bytes) -> str:
    """A DER name as text, for instance `CN=app,O=Example,C=DE`; empty for a name without parts. Raises MalformedDer."""
    parts = []
    for part in elements(only(name, SEQUENCE).content):
        if part.tag != SET:
            raise MalformedDer("a part of a name isn't a set")
        parts.append("+".join(_attribute(attribute.encoded) for attribute in elements(part.content)))
    return ",".join(reversed(parts))


def _attribute(encoded: bytes) -> str:
    pair = elements(only(encoded, SEQUENCE).content)
    if len(pair) != 2 or pair[0].tag != OBJECT_IDENTIFIER:
        raise MalformedDer("an attribute of a name isn't a type and a value")
    number, value = object_identifier(pair[0].content), pair[1]
    keyword = _KEYWORDS.get(number)
    if keyword is None or value.tag not in _TEXTS:
        return f"{keyword or number}=#{value.encoded.hex()}"
    return f"{keyword}={_escaped(value.content.decode(errors='replace'))}"


def _escaped(text: str) -> str:
    text = "".join(f"\\{each}" if each in _ESCAPED else "\\00" if each == "\0" else each for each in text)
    inner = text.strip(_BLANKS)
    if not inner:
        return "".join(f"\\{blank}" for blank in text)
    begin = text.index(inner)
    leading, trailing = text[:begin], text[begin + len(inner) :]
    return "".join(f"\\{blank}" for blank in leading) + inner + "".join(f"\\{blank}" for blank in trailing)
