"""SCRAM-SHA-256 and SCRAM-SHA-512: the messages, the keys, and both sides of a login. Pure.

Sources: RFC 5802, RFC 7677, and Kafka's ScramSaslServer and ScramMessages. As in Kafka, there is no channel binding
(`n,` is the only start), and names and passwords aren't normalised (no SASLprep). An extension of the first message,
`tokenauth=true`, says that the name is the id of a delegation token (KIP-48); unknown extensions are ignored.

A server that refused an unknown name by its first message would tell which names exist. Kafka does so. Here an unknown
name gets a *made-up* credential: salt and iterations look like those of the other users, they are the same at every
attempt and at every broker, and the login fails at its second message, like a login with a wrong password. Both need
the same computations.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from ottla.protocol.sasl import SCRAM_SHA_256, SCRAM_SHA_512, LoggedIn, LoginRefused, refusal

HASHES = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
"""The hash function of each mechanism, by hashlib's names."""

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16384

_NAME = r"(?:[^=,\0]++|=2C|=3D)++"
_PRINTABLE = r"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS = r"(?:,[A-Za-z]++=[^,\0]++)*"
_CLIENT_FIRST = re.compile(
    rf"(?P<gs2>n,(?:a=(?P<authorization>{_NAME}))?,)"
    rf"(?P<bare>(?:m=[^,\0]+,)?n=(?P<name>{_NAME}),r=(?P<nonce>{_PRINTABLE})(?P<extensions>{_EXTENSIONS}))"
)
_CLIENT_FINAL = re.compile(
    rf"(?P<without>c=(?P<channel>[A-Za-z0-9+/=]+),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS}),p=(?P<proof>[A-Za-z0-9+/=]+)"
)
_SERVER_FIRST = re.compile(
    rf"(?:m=[^,\0]+,)?r=(?P<nonce>{_PRINTABLE}),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<iterations>[0-9]{{1,9}}){_EXTENSIONS}"
)
_SERVER_FINAL = re.compile(rf"(?:v=(?P<verifier>[A-Za-z0-9+/=]+)|e=(?P<error>[^,\0]+)){_EXTENSIONS}")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What a server knows of a user's password. With it nobody can log in, but the password can be guessed offline."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


@dataclass(frozen=True, slots=True)
class Known:
    """The credential behind a name. `user` is the user who is logged in by it: for a delegation token its owner, with
    the end of the token's life in ms since the Unix epoch."""

    user: str
    credential: ScramCredential
    expires_ms: int | None = None


LookUp = Callable[[str, bool], Known | None]
"""The credential behind a name; the second argument says whether the name is that of a delegation token."""


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """PBKDF2 of the password: the slow step, which only clients and administrators' tools take."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


_kept_salted_password = lru_cache(maxsize=16)(salted_password)
"""The last results of this process's own logins are kept, because a broker logs in at other brokers again and again,
and each PBKDF2 would hold its event loop for milliseconds."""


def credential_of(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """The credential that a server keeps, from a salted password."""
    stored_key = hashlib.new(HASHES[mechanism], _mac(mechanism, salted, b"Client Key")).digest()
    return ScramCredential(salt, stored_key, _mac(mechanism, salted, b"Server Key"), iterations)


class MadeUp:
    """Makes the credentials of unknown names. They depend on `key`, which only brokers know, and on the usual form of
    the real ones: the iterations, and the salt's length and alphabet."""

    def __init__(self, mechanism: str, key: bytes, credentials: Iterable[ScramCredential]) -> None:
        self._mechanism = mechanism
        self._key = key
        forms = Counter((each.iterations, len(each.salt), _is_text(each.salt)) for each in credentials)
        usual = min(forms, key=lambda form: (-forms[form], form), default=None)
        self._form = usual or (ITERATIONS_MIN, 26, True)  # without users: what Kafka's tools make

    def credential(self, name: str) -> ScramCredential:
        """The credential of an unknown name: the same at each call."""
        iterations, length, is_text = self._form
        seed = hmac.digest(self._key, f"{self._mechanism}\0{name}".encode(), "sha256")
        salt = hashlib.shake_256(seed).digest(length)
        if is_text:
            salt = bytes(ord(_DIGITS[byte % len(_DIGITS)]) for byte in salt)
        size = hashlib.new(HASHES[self._mechanism]).digest_size
        keys = hashlib.shake_256(seed + b"keys").digest(2 * size)
        return ScramCredential(salt, keys[:size], keys[size:], iterations)


class ScramServer:
    """The server's side of one login. `nonce` is random printable text, new for each login."""

    def __init__(self, mechanism: str, look_up: LookUp, made_up: MadeUp, nonce: str) -> None:
        self._mechanism = mechanism
        self._look_up = look_up
        self._made_up = made_up
        self._nonce = nonce
        self._known: Known | None = None
        self._credential: ScramCredential | None = None
        self._by_token = False
        self._authorization = ""
        self._name = ""
        self._gs2 = ""
        self._auth_message = ""

    def respond(self, message: bytes) -> bytes | LoggedIn:
        """Answers the client's first message by salt and iterations, its second one by the end of the login."""
        try:
            text = message.decode()
        except UnicodeDecodeError:
            raise self._refused("a message isn't UTF-8") from None
        return self._first(text) if self._credential is None else self._final(text, self._credential)

    def _first(self, text: str) -> bytes:
        match = _CLIENT_FIRST.fullmatch(text)
        if match is None:
            raise self._refused("the first message is malformed, or wants channel binding")
        self._name = _unescaped(match["name"])
        self._by_token = "tokenauth=true" in match["extensions"].lower().split(",")
        self._authorization = _unescaped(match["authorization"] or "")
        self._gs2 = match["gs2"]
        self._known = self._look_up(self._name, self._by_token)
        made_up = self._made_up.credential(self._name)
        self._credential = made_up if self._known is None else self._known.credential
        self._nonce = match["nonce"] + self._nonce
        salt = base64.b64encode(self._credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._auth_message = f"{match['bare']},{answer}"
        return answer.encode()

    def _final(self, text: str, credential: ScramCredential) -> LoggedIn:
        match = _CLIENT_FINAL.fullmatch(text)
        if match is None:
            raise self._refused("the final message is malformed")
        # Java's client binds to "n,," even where it sends an authorisation id.
        if _decoded(match["channel"]) not in (self._gs2.encode(), b"n,,"):
            raise self._refused("the final message binds to another start")
        if not hmac.compare_digest(match["nonce"].encode(), self._nonce.encode()):
            raise self._refused("the final message has another nonce")
        auth_message = f"{self._auth_message},{match['without']}".encode()
        proof = _decoded(match["proof"])
        signature = _mac(self._mechanism, credential.stored_key, auth_message)
        client_key = _xor(proof.ljust(len(signature), b"\0")[: len(signature)], signature)
        stored_key = hashlib.new(HASHES[self._mechanism], client_key).digest()
        matches = hmac.compare_digest(stored_key, credential.stored_key) and len(proof) == len(signature)
        if self._known is None or not matches:
            raise self._refused("unknown user" if self._known is None else "wrong password")
        if self._look_up(self._name, self._by_token) != self._known:
            raise self._refused("the user was changed or deleted during the login")
        if self._authorization not in ("", self._name):
            raise LoginRefused(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        verifier = base64.b64encode(_mac(self._mechanism, credential.server_key, auth_message))
        return LoggedIn(self._known.user, b"v=" + verifier, self._known.expires_ms, self._by_token)

    def _refused(self, why: str) -> LoginRefused:
        return LoginRefused(refusal(self._mechanism), why)


class ScramClient:
    """The client's side of one login. `nonce` is random printable text without commas, new for each login. `kept` says
    whether the salted password is kept for the next login; one that somebody else sent mustn't be."""

    def __init__(
        self, mechanism: str, user: str, password: str, nonce: str, *, by_token: bool = False, kept: bool = True
    ) -> None:
        self.mechanism = mechanism
        self._user = user
        self._password = password
        self._nonce = nonce
        self._by_token = by_token
        self._salted_password = _kept_salted_password if kept else salted_password
        self._expected: bytes | None = None  # the server's signature
        self._bare = ""

    def first(self) -> bytes:
        """The name and the nonce."""
        extension = ",tokenauth=true" if self._by_token else ""
        self._bare = f"n={_escaped(self._user)},r={self._nonce}{extension}"
        return f"n,,{self._bare}".encode()

    def next(self, challenge: bytes) -> bytes | None:
        """The proof, and then None if the server has proved that it knows the credential, too."""
        text = challenge.decode(errors="replace")
        if self._expected is None:
            return self._prove(text)
        match = _SERVER_FINAL.fullmatch(text)
        if match is None or match["verifier"] is None:
            raise LoginRefused(f"the server refused the login by {self.mechanism}")
        if not hmac.compare_digest(_decoded(match["verifier"]), self._expected):
            raise LoginRefused(f"the server doesn't prove that it knows the password ({self.mechanism})")
        return None

    def _prove(self, text: str) -> bytes:
        match = _SERVER_FIRST.fullmatch(text)
        if match is None:
            raise LoginRefused(f"the server's first message of {self.mechanism} is malformed")
        iterations = int(match["iterations"])
        if not match["nonce"].startswith(self._nonce) or match["nonce"] == self._nonce:
            raise LoginRefused(f"the server's nonce doesn't continue the client's ({self.mechanism})")
        if not ITERATIONS_MIN <= iterations <= 100 * ITERATIONS_MAX:
            raise LoginRefused(f"the server wants {iterations} iterations of {self.mechanism}")
        salted = self._salted_password(self.mechanism, self._password, _decoded(match["salt"]), iterations)
        client_key = _mac(self.mechanism, salted, b"Client Key")
        stored_key = hashlib.new(HASHES[self.mechanism], client_key).digest()
        without = f"c=biws,r={match['nonce']}"
        auth_message = f"{self._bare},{text},{without}".encode()
        proof = _xor(client_key, _mac(self.mechanism, stored_key, auth_message))
        self._expected = _mac(self.mechanism, _mac(self.mechanism, salted, b"Server Key"), auth_message)
        return f"{without},p={base64.b64encode(proof).decode()}".encode()


def _mac(mechanism: str, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, HASHES[mechanism])


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(left ^ right for left, right in zip(one, other, strict=True))


def _escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    """The bytes of a base64 text; empty for an invalid text, which equals no expected bytes."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""


def _is_text(salt: bytes) -> bool:
    """Whether a salt has the form that Kafka's tools draw: a number to the base 36."""
    return all(chr(byte) in _DIGITS for byte in salt)
