"""One broker with a listener of each kind of security, whose secrets a test knows, and clients of it."""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    load_pem_private_key,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from cryptography.x509 import load_pem_x509_certificates
from jwt.algorithms import RSAAlgorithm

from ottla.protocol.sasl import SCRAM_SHA_512, ClientExchange
from ottla.security.plain import PlainClient
from ottla.security.scram import ScramClient, credential_of, salted_password
from tests.peers.certificates import Authority
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.wire import Wire, free_port, log_in

METADATA, ALTER_USER_SCRAM_CREDENTIALS = 3, 51
LISTENERS = ("INSIDE", "LOCKED", "LOGIN", "SECURE", "TOKENS")
AUDIENCE, ISSUER = "ottla", "https://id.example"
PASSWORDS = {
    "admin": "admins-Secret-1",
    "alice": "alices=,Secret-2",
    "store": "stores-Secret-3",
    "wrong": "wrong-Secret-4",
}
TOKEN_SECRET = "delegation-Secret-5"
SALT, ITERATIONS = b"salt-of-bob-Secret-6", 4096
BOBS = "bobs-Secret-7"
_MODULES = "org.apache.kafka.common.security"
PLAIN_MODULE = f"{_MODULES}.plain.PlainLoginModule required"
SCRAM_MODULE = f"{_MODULES}.scram.ScramLoginModule required"
_TOKEN_VALIDATOR = f"{_MODULES}.oauthbearer.OAuthBearerValidatorCallbackHandler"
OAUTH_MODULE = f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required"


class SecuredBroker:
    """INSIDE is plain; LOCKED asks for certificates; LOGIN (plain) and SECURE (encrypted) ask for a login by PLAIN or
    SCRAM; TOKENS asks for signed tokens. The pages are encrypted, and ask for a login. `admin` is the super user, and
    nobody else has a right."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder / "ca")
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in LISTENERS}
        self.pages = f"127.0.0.1:{free_port()}"
        self.provider = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.key = self.authority.issue("server", common_name="broker")
        keys = folder / "jwks.json"
        public = json.loads(RSAAlgorithm.to_jwk(self.provider.public_key()))
        keys.write_text(json.dumps({"keys": [public | {"kid": "one", "use": "sig"}]}))
        listeners = ",".join(f"{name}://{address}" for name, address in self.addresses.items())
        plain = f'{PLAIN_MODULE} user_admin="{PASSWORDS["admin"]}" user_alice="{PASSWORDS["alice"]}";'
        tokens = "listener.name.tokens.oauthbearer."
        self.broker = OttlaBroker(
            folder / "broker",
            self.addresses["INSIDE"],
            **{
                "listeners": listeners,
                "advertised.listeners": listeners,
                "listener.security.protocol.map": "INSIDE:PLAINTEXT,LOCKED:SSL,LOGIN:SASL_PLAINTEXT,SECURE:SASL_SSL,"
                "TOKENS:SASL_PLAINTEXT",
                "inter.broker.listener.name": "INSIDE",
                "ottla.log.level": "DEBUG",
                "ottla.login.timeout.ms": "4000",
                "ottla.http.listener": self.pages,
                "ottla.http.security.protocol": "SASL_SSL",
                "connections.max.reauth.ms": "600000",
                "delegation.token.secret.key": TOKEN_SECRET,
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:admin",
                "ssl.keystore.type": "PKCS12",
                "ssl.keystore.location": str(self._key_store()),
                "ssl.keystore.password": PASSWORDS["store"],
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.authority.trust),
                "listener.name.locked.ssl.client.auth": "required",
                "listener.name.locked.ssl.principal.mapping.rules": r"RULE:^CN=([^,]*),OU=tests.*$/$1/",
                "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
                "listener.name.tokens.sasl.enabled.mechanisms": "OAUTHBEARER",
                "listener.name.http.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
                **{f"listener.name.{name}.plain.sasl.jaas.config": plain for name in ("login", "secure", "http")},
                f"{tokens}sasl.jaas.config": f"{OAUTH_MODULE};",
                f"{tokens}sasl.server.callback.handler.class": _TOKEN_VALIDATOR,
                f"{tokens}sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
                f"{tokens}sasl.oauthbearer.expected.audience": AUDIENCE,
                f"{tokens}sasl.oauthbearer.expected.issuer": ISSUER,
            },
        )
        with self.logged_in() as wire:
            salted = salted_password(SCRAM_SHA_512, BOBS, SALT, ITERATIONS)
            bob = {"name": "bob", "mechanism": 2, "iterations": ITERATIONS, "salt": SALT, "salted_password": salted}
            answer = wire.call(ALTER_USER_SCRAM_CREDENTIALS, 0, {"deletions": [], "upsertions": [bob]})
            assert not answer.results[0].error_code, answer

    def _key_store(self) -> Path:
        pem = self.key.read_bytes()
        encrypted = BestAvailableEncryption(PASSWORDS["store"].encode())
        own, *others = load_pem_x509_certificates(pem)
        key: Any = load_pem_private_key(pem, None)
        path = self.folder / "server.p12"
        path.write_bytes(serialize_key_and_certificates(b"broker", key, own, others, encrypted))
        return path

    # ---- clients

    def trusting(self, key: Path | None = None) -> ssl.SSLContext:
        """The context of a client that trusts the broker, and shows the certificate in the file `key`."""
        context = ssl.create_default_context(cafile=str(self.authority.trust))
        if key is not None:
            context.load_cert_chain(key)
        return context

    def token(self, **claims: Any) -> str:
        """A token of the identity provider; claims that are None are left out."""
        now = int(time.time())
        usual = {"sub": "carol", "aud": AUDIENCE, "iss": ISSUER, "iat": now, "exp": now + 600}
        given = {name: value for name, value in (usual | claims).items() if value is not None}
        return jwt.encode(given, self.provider, algorithm="RS256", headers={"kid": "one"})

    def login(self, user: str, password: str | None = None) -> ClientExchange:
        """A login by PLAIN or, as bob, by SCRAM."""
        if user == "bob":
            return ScramClient(SCRAM_SHA_512, user, BOBS if password is None else password, "a-nonce")
        return PlainClient(user, PASSWORDS[user] if password is None else password)

    @contextmanager
    def logged_in(self, user: str = "admin", listener: str = "SECURE") -> Iterator[Wire]:
        """A connection on which this user has logged in. Raises LoginRefused, OSError, Closed."""
        with Wire(self.addresses[listener], 10, tls=self.trusting() if listener == "SECURE" else None) as wire:
            log_in(wire, self.login(user))
            yield wire

    def serves(self) -> bool:
        """Whether a good client is served within five seconds, from the beginning of its connection."""
        began = time.monotonic()
        with self.logged_in("bob") as wire:
            brokers = wire.call(METADATA, 4, {"topics": [], "allow_auto_topic_creation": False}).brokers
        return len(brokers) == 1 and time.monotonic() - began < 5

    # ---- secrets

    def secrets(self) -> dict[str, bytes]:
        """All secrets of the broker, by what they are."""
        salted = salted_password(SCRAM_SHA_512, BOBS, SALT, ITERATIONS)
        credential = credential_of(SCRAM_SHA_512, salted, SALT, ITERATIONS)
        key_lines = self.key.read_text().partition("-----END")[0].splitlines()[1:]
        return {
            **{f"password of {name}": password.encode() for name, password in PASSWORDS.items()},
            "password of bob": BOBS.encode(),
            "salt of bob": SALT,
            "salted password of bob": salted,
            "stored key of bob": credential.stored_key,
            "server key of bob": credential.server_key,
            "key of delegation tokens": TOKEN_SECRET.encode(),
            **{f"line {number} of the private key": line.encode() for number, line in enumerate(key_lines)},
            "the private key": base64.b64decode("".join(key_lines))[-40:],
        }
