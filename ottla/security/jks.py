"""Java's old key stores, of the type JKS: reads them, and checks their integrity. Pure.

A store has entries by alias. Its last 20 bytes are a SHA-1 over the password, a fixed phrase and everything before
them. Private keys are encrypted by a key stream that is made of SHA-1 sums of the password, and carry a sum of their
own. Both are weak; the format is read here because files of it exist.

Source: `sun.security.provider.JavaKeyStore` and `KeyProtector` of OpenJDK 17.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass, field

from ottla.security.der import OCTET_STRING, SEQUENCE, MalformedDer, elements, object_identifier, only

MAGIC = b"\xfe\xed\xfe\xed"
_PHRASE = b"Mighty Aphrodite"
_SUM_BYTES = 20
_KEY, _TRUSTED = 1, 2
_PROTECTOR = "1.3.6.1.4.1.42.2.17.1.1"


class InvalidJks(ValueError):
    """The bytes aren't a JKS store, the store was changed, or a password is wrong."""


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """A private key (PKCS #8, DER, never shown) and its certificates (DER), the key's own one first."""

    alias: str
    key: bytes = field(repr=False)
    chain: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class TrustedEntry:
    """A trusted certificate (DER)."""

    alias: str
    certificate: bytes


def read_jks(
    data: bytes, password: str | None, key_password: str | None = None
) -> tuple[list[KeyEntry], list[TrustedEntry]]:
    """The entries of a store. `key_password` None means that keys have the store's password.

    Without a password the integrity isn't checked, as in Java, and a store with keys is refused. Raises InvalidJks.
    """
    if password is not None and not hmac.compare_digest(
        hashlib.sha1(_utf16(password) + _PHRASE + data[:-_SUM_BYTES]).digest(), data[-_SUM_BYTES:]
    ):
        raise InvalidJks("the password is wrong, or the store was changed")
    reader = _Reader(data[:-_SUM_BYTES])
    if reader.take(4) != MAGIC:
        raise InvalidJks("it isn't a JKS store")
    version = reader.number()
    if version not in (1, 2):
        raise InvalidJks(f"it has the unknown version {version}")
    keys: list[KeyEntry] = []
    trusted: list[TrustedEntry] = []
    for _ in range(reader.number()):
        kind, alias, _ = reader.number(), reader.text(), reader.take(8)  # the third is the time of its creation
        if kind == _KEY:
            secret = key_password if key_password is not None else password
            if secret is None:
                raise InvalidJks("it has a private key, and no password is given")
            encrypted = reader.sized()
            chain = tuple(reader.certificate(version) for _ in range(reader.number()))
            keys.append(KeyEntry(alias, _decrypted(encrypted, secret), chain))
        elif kind == _TRUSTED:
            trusted.append(TrustedEntry(alias, reader.certificate(version)))
        else:
            raise InvalidJks(f"it has an entry of the unknown kind {kind}")
    return keys, trusted


class _Reader:
    """Reads numbers, bytes and texts as Java's DataInputStream does."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise InvalidJks("it ends early")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def number(self) -> int:
        return int(struct.unpack(">I", self.take(4))[0])

    def sized(self) -> bytes:
        return self.take(self.number())

    def text(self) -> str:
        return self.take(int(struct.unpack(">H", self.take(2))[0])).decode(errors="replace")

    def certificate(self, version: int) -> bytes:
        kind = self.text() if version == 2 else "X.509"
        if kind != "X.509":
            raise InvalidJks(f"it has a certificate of the unknown kind {kind!r}")
        return self.sized()


def _utf16(password: str) -> bytes:
    return password.encode("utf-16-be", errors="surrogatepass")


def _decrypted(encrypted: bytes, password: str) -> bytes:
    """The PKCS #8 key in an EncryptedPrivateKeyInfo of Java's own algorithm."""
    try:
        parts = elements(only(encrypted, SEQUENCE).content)
        if [part.tag for part in parts] != [SEQUENCE, OCTET_STRING]:
            raise MalformedDer("not an encrypted key")
        algorithm = elements(parts[0].content)
        if not algorithm or object_identifier(algorithm[0].content) != _PROTECTOR:
            raise InvalidJks("a private key is encrypted by an unknown algorithm")
    except MalformedDer as error:
        raise InvalidJks(f"a private key can't be read: {error}") from None
    content = parts[1].content
    if len(content) < 2 * _SUM_BYTES:
        raise InvalidJks("a private key ends early")
    salt, hidden, check = content[:_SUM_BYTES], content[_SUM_BYTES:-_SUM_BYTES], content[-_SUM_BYTES:]
    secret = _utf16(password)
    stream, digest = bytearray(), salt
    while len(stream) < len(hidden):
        digest = hashlib.sha1(secret + digest).digest()
        stream += digest
    key = bytes(one ^ other for one, other in zip(hidden, stream, strict=False))
    if not hmac.compare_digest(hashlib.sha1(secret + key).digest(), check):
        raise InvalidJks("the password of a private key is wrong")
    return key
