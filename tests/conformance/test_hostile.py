"""Strangers at each kind of listener: they get Kafka's error or a closed connection, nobody is harmed, and no secret is
told.

After each test a good client is served. After all of them the broker's log has no traceback, and no secret of the
broker stands in anything that was written or answered, neither as it is, nor in hexadecimal digits or base64.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import random
import re
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import write_request
from ottla.protocol.sasl import SCRAM_SHA_512, LoginRefused
from ottla.security.oauthbearer import OAuthClient
from ottla.security.plain import PlainClient
from ottla.security.scram import ScramClient
from ottla.security.token_claims import encoded
from tests.peers.certificates import Authority
from tests.peers.secured_broker import BOBS, PASSWORDS, PLAIN_MODULE, SecuredBroker
from tests.peers.wire import Closed, Wire, frame, log_in

FETCH, METADATA, API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS = 1, 3, 18, 19, 20
OFFSET_FOR_LEADER_EPOCH, WRITE_TXN_MARKERS, CREATE_ACLS, DESCRIBE_CONFIGS, DESCRIBE_SCRAM = 23, 27, 30, 32, 50
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
CLOSED_S = 15.0  # a handshake has 10 s, and a login ottla.login.timeout.ms
TOPIC = "guarded"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    house = SecuredBroker(tmp_path_factory.mktemp("hostile"))
    with house.logged_in() as wire:
        topic = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1}
        assert not wire.call(CREATE_TOPICS, 5, {"topics": [topic], "timeout": 5000}).topics[0].error_code
    yield house
    house.broker.stop()
    written = house.broker.log_path.read_text()
    assert "Traceback" not in written, written[-4000:]
    assert " ERROR " not in written


@pytest.fixture(autouse=True)
def a_good_client_is_served_afterwards(house: SecuredBroker) -> Iterator[None]:
    yield
    assert house.serves()


def connect(house: SecuredBroker, listener: str) -> socket.socket:
    host, _, port = house.addresses[listener].rpartition(":")
    return socket.create_connection((host, int(port)), CLOSED_S)


def wait_for(house: SecuredBroker, words: str, count: int = 1) -> None:
    """Waits until the broker's log has these words so many times."""
    deadline = time.monotonic() + 10
    while house.broker.log_path.read_text().count(words) != count:
        assert time.monotonic() < deadline, words
        time.sleep(0.02)


def ends(client: socket.socket) -> bytes:
    """The bytes that a connection receives until the broker closes it. Raises TimeoutError for one that hangs."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while part := client.recv(65536):
            received += part
    client.close()
    return received


# ---- TLS


def hello(maximum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    """The first message of a TLS client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = maximum
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


KAFKA = bytes.fromhex("0000000a00120000000000010000")
JUNK = {
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "Kafka without TLS": KAFKA,
    "zeros": bytes(5000),
    "ones": b"\xff" * 5000,
    "random": random.Random(19).randbytes(20_000),
    "a record that is too long": b"\x16\x03\x01\xff\xff" + bytes(70_000),
    "an alert": b"\x15\x03\x03\x00\x02\x02\x28",
    "a heartbeat": b"\x18\x03\x02\x00\x03\x01\x40\x00",
    "SSL 2": b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10" + bytes(37),
    "application data": b"\x17\x03\x03\x00\x20" + bytes(32),
    "a hello with another one inside": b"\x16\x03\x01\x00\x05" + hello(),
    "two hellos": hello() * 2,
    "a hello and Kafka": hello() + KAFKA * 10,
    "a hello whose end is changed": hello()[:-20] + bytes(20) + KAFKA,
    "empty records": b"\x16\x03\x03\x00\x00" * 200,
}


@pytest.mark.parametrize("listener", ["LOCKED", "SECURE"])
@pytest.mark.parametrize("junk", JUNK.values(), ids=list(JUNK))
def test_junk_in_place_of_a_handshake_closes_the_connection(house: SecuredBroker, listener: str, junk: bytes) -> None:
    client = connect(house, listener)
    client.sendall(junk)
    client.shutdown(socket.SHUT_WR)
    assert b"broker" not in ends(client) or junk.startswith(b"\x16"), "a certificate is for those who speak TLS"


def test_a_failed_handshake_leaves_one_line(house: SecuredBroker) -> None:
    words = "listener LOCKED: the TLS handshake with 127.0.0.1 failed: the peer doesn't speak TLS"
    for junk in (JUNK["HTTP"], JUNK["Kafka without TLS"], JUNK["zeros"]):
        before = house.broker.log_path.read_text().count(words)
        client = connect(house, "LOCKED")
        client.sendall(junk)
        assert len(ends(client)) in (0, 7)  # nothing, or an alert
        wait_for(house, words, before + 1)


def test_handshakes_that_never_end_are_closed_and_keep_nobody_waiting(house: SecuredBroker) -> None:
    """Some stop after each number of bytes, some drip on for ever; some hang up."""
    whole = hello()
    open_ones, dripping = [], []
    for number in range(150):
        client = connect(house, "LOCKED" if number % 2 else "SECURE")
        client.sendall(whole[: number * len(whole) // 150])
        if number % 10 == 3:
            client.close()
        elif number % 10 == 7:
            dripping.append(client)
        else:
            open_ones.append(client)
    assert house.serves()
    began = time.monotonic()
    while dripping and time.monotonic() - began < CLOSED_S:
        time.sleep(0.3)
        for client in list(dripping):
            try:
                client.send(b"\x16")
            except OSError:
                dripping.remove(client)
    assert not dripping
    for client in open_ones:
        ends(client)
    assert time.monotonic() - began < 2 * CLOSED_S


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1], ids=["1.0", "1.1"])
@pytest.mark.parametrize("listener", ["LOCKED", "SECURE"])
def test_old_versions_of_tls_are_refused(house: SecuredBroker, listener: str, version: ssl.TLSVersion) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = version
    with pytest.raises(ssl.SSLError, match=r"PROTOCOL_VERSION|HANDSHAKE_FAILURE"):
        Wire(house.addresses[listener], CLOSED_S, tls=context)


def test_a_renegotiation_is_refused(house: SecuredBroker) -> None:
    address, trust = house.addresses["SECURE"], str(house.authority.trust)
    command = ["openssl", "s_client", "-connect", address, "-tls1_2", "-CAfile", trust]
    done = subprocess.run(command, input=b"R\nR\n", capture_output=True, timeout=30, check=False)
    assert b"RENEGOTIATING" in done.stdout + done.stderr
    assert b"no renegotiation" in done.stdout + done.stderr


def test_certificates_of_strangers_are_refused(house: SecuredBroker, tmp_path: Path) -> None:
    expired = house.authority.issue("expired", common_name="admin", expired=True)
    of_another = Authority(tmp_path).issue("stranger", common_name="admin")
    log = house.broker.log_path
    for key, why in (
        (None, "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
        (of_another, "the client's certificate isn't trusted: "),
        (expired, "the client's certificate isn't trusted: certificate has expired"),
    ):
        words = f"listener LOCKED: the TLS handshake with 127.0.0.1 failed: {why}"
        before = log.read_text().count(words)
        with pytest.raises((OSError, Closed)), Wire(house.addresses["LOCKED"], tls=house.trusting(key)) as wire:
            wire.call(API_VERSIONS, 0)
        wait_for(house, words, before + 1)


NAMES = ["admin,OU=tests", 'admin", ', "admin\\", "admin+OU=x", "#admin", " admin", "admin ", "admin/", "$1", "admin;",
         "CN=admin", "admin\nUser:admin is Allowed", "ädmin\u202e", "<admin>", "ADMIN", "admin\\,OU=tests"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_no_spelling_of_a_name_makes_somebody_else_of_it(house: SecuredBroker, name: str) -> None:
    """The rule takes what stands between CN= and the next comma: a name may contain commas and escapes itself."""
    key = house.authority.issue("spelled", common_name=name)
    try:
        with Wire(house.addresses["LOCKED"], tls=house.trusting(key)) as wire:
            answer = wire.call(
                CREATE_TOPICS, 5, {"topics": [{"name": "x", "num_partitions": 1, "replication_factor": 1}]}
            )
            assert ErrorCode(answer.topics[0].error_code) == ErrorCode.topic_authorization_failed
    except (Closed, ConnectionError):
        pass  # no rule applies to the name
    assert not re.search(r"^User:admin", house.broker.log_path.read_text(), re.MULTILINE)


def test_the_right_name_is_a_super_user(house: SecuredBroker) -> None:
    """Without this test, the one before it would prove nothing."""
    key = house.authority.issue("right", common_name="admin")
    with Wire(house.addresses["LOCKED"], tls=house.trusting(key)) as wire:
        asked = {"topics": [{"name": "x", "num_partitions": 1, "replication_factor": 1}], "validate_only": True}
        assert not wire.call(CREATE_TOPICS, 5, asked).topics[0].error_code


# ---- logins


def request(api_key: int, version: int, message: dict[str, Any]) -> bytes:
    """A frame with a header without a client id, for versions whose header has no tagged fields."""
    return frame(struct.pack(">hhih", api_key, version, 7, -1) + write_request(api_key, version, message))


HANDSHAKE = request(SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
RAW_HANDSHAKE = request(SASL_HANDSHAKE, 0, {"mechanism": "PLAIN"})
WRONG = f"\0alice\0{PASSWORDS['wrong']}".encode()
AUTHENTICATE = request(SASL_AUTHENTICATE, 1, {"auth_bytes": WRONG})
GREETING = request(API_VERSIONS, 0, {})
ASK = request(METADATA, 1, {"topics": []})
MAKE = request(CREATE_TOPICS, 4, {"topics": [{"name": "by-a-stranger", "num_partitions": 1, "replication_factor": 1}]})
OUT_OF_ORDER = {
    "a request": ASK,
    "a message without a handshake": AUTHENTICATE,
    "a message after the greeting": GREETING + AUTHENTICATE,
    "two greetings": GREETING * 2,
    "two handshakes": HANDSHAKE * 2,
    "a greeting during the login": HANDSHAKE + GREETING,
    "a request during the login": HANDSHAKE + ASK,
    "an unknown mechanism": request(SASL_HANDSHAKE, 1, {"mechanism": "GSSAPI"}),
    "the mechanism of another listener": request(SASL_HANDSHAKE, 1, {"mechanism": "OAUTHBEARER"}),
    "a mechanism of 30,000 characters": request(SASL_HANDSHAKE, 1, {"mechanism": "P" * 30_000}),
    "no message": HANDSHAKE + request(SASL_AUTHENTICATE, 1, {"auth_bytes": b""}),
    "a message of 500 kB": HANDSHAKE + request(SASL_AUTHENTICATE, 1, {"auth_bytes": b"\0a\0" + b"p" * 500_000}),
    "a frame above the limit": HANDSHAKE + struct.pack(">i", 600_000) + bytes(600_000),
    "a frame of 2 GiB": struct.pack(">i", 2**31 - 1) + HANDSHAKE,
    "a negative frame": struct.pack(">i", -1),
    "a message of a negative size": RAW_HANDSHAKE + struct.pack(">i", -5),
    "a message that isn't a frame's size": RAW_HANDSHAKE + WRONG,
    "requests behind a wrong message": HANDSHAKE + AUTHENTICATE + MAKE * 3,
    "requests behind a wrong message without a header": RAW_HANDSHAKE + frame(WRONG) + MAKE * 3,
    "many NULs": HANDSHAKE + request(SASL_AUTHENTICATE, 1, {"auth_bytes": bytes(100_000)}),
    "an unknown version": frame(struct.pack(">hhih", SASL_AUTHENTICATE, 99, 7, -1)),
    "TLS": hello(),
}


@pytest.mark.parametrize("sent", OUT_OF_ORDER.values(), ids=list(OUT_OF_ORDER))
def test_a_login_out_of_order_closes_the_connection_and_nothing_is_done(house: SecuredBroker, sent: bytes) -> None:
    client = connect(house, "LOGIN")
    with contextlib.suppress(ConnectionError):
        client.sendall(sent)
    ends(client)
    with house.logged_in() as wire:
        names = {topic.name for topic in wire.call(METADATA, 4, {"topics": None}).topics}
    assert "by-a-stranger" not in names


def test_random_frames_before_the_login_close_the_connection(house: SecuredBroker) -> None:
    pick = random.Random(19)
    opened = []
    for number in range(120):
        client = connect(house, "LOGIN")
        frames = []
        for _ in range(pick.randrange(1, 6)):
            key, version = pick.choice((17, 36, 18, 0, 1, 3, 51, -1, 31000)), pick.randrange(-1, 13)
            body = pick.choice(
                (
                    pick.randbytes(pick.randrange(300)),
                    struct.pack(">h", 5) + b"PLAIN",
                    struct.pack(">i", len(WRONG)) + WRONG,
                    b"\0\0\0\x05hello" * 50,
                )
            )
            sent = struct.pack(">hhih", key, version, 7, -1) + body
            frames.append(struct.pack(">i", pick.choice((len(sent), len(sent), 600_000, -1, 0, 2**31 - 1))) + sent)
        client.sendall(b"".join(frames))
        opened.append(client)
        if number % 3 == 0:
            client.shutdown(socket.SHUT_WR)
    assert house.serves()
    for client in opened:
        ends(client)


def test_requests_before_the_login_wait_for_it(house: SecuredBroker) -> None:
    right = request(SASL_AUTHENTICATE, 1, {"auth_bytes": f"\0admin\0{PASSWORDS['admin']}".encode()})
    with Wire(house.addresses["LOGIN"]) as wire:
        wire.send(HANDSHAKE + right + ASK)
        sizes = [len(wire.receive()) for _ in range(3)]
    assert len(sizes) == 3


@pytest.mark.parametrize("listener", ["LOGIN", "SECURE"])
def test_a_login_as_somebody_else_over_the_same_connection_is_refused(house: SecuredBroker, listener: str) -> None:
    with house.logged_in("alice", listener) as wire:
        time.sleep(1.1)  # the shortest time between two logins
        with pytest.raises(LoginRefused, match="Cannot change principals during re-authentication"):
            log_in(wire, house.login("admin"))
        assert wire.closed_by_peer()
    with house.logged_in("alice", listener) as wire:
        time.sleep(1.1)
        with pytest.raises(Closed):
            log_in(wire, house.login("bob"))  # by another mechanism


@pytest.mark.parametrize("user", ["alice", "bob", "nobody", "", "admin\0", "a" * 30_000, "bob,r=x", "=2Cbob"])
def test_wrong_passwords_are_refused_by_the_same_words(house: SecuredBroker, user: str) -> None:
    for exchange in (
        PlainClient(user, PASSWORDS["wrong"]),
        ScramClient(SCRAM_SHA_512, user, PASSWORDS["wrong"], "a-nonce"),
    ):
        with Wire(house.addresses["LOGIN"], CLOSED_S) as wire:
            with pytest.raises(LoginRefused) as caught:
                log_in(wire, exchange)
            assert wire.closed_by_peer()
        if user in ("alice", "bob", "nobody"):
            assert str(caught.value).startswith("Authentication failed")


def test_a_stolen_proof_of_another_login_is_of_no_use(house: SecuredBroker) -> None:
    messages: list[bytes] = []

    class Recorded(ScramClient):
        def next(self, challenge: bytes) -> bytes | None:
            answer = super().next(challenge)
            messages.append(answer or b"")
            return answer

    with Wire(house.addresses["LOGIN"]) as wire:
        log_in(wire, Recorded(SCRAM_SHA_512, "bob", BOBS, "a-nonce"))

    class Replayed(ScramClient):
        def next(self, challenge: bytes) -> bytes | None:
            return messages[0]

    with Wire(house.addresses["LOGIN"], CLOSED_S) as wire:
        with pytest.raises(LoginRefused):
            log_in(wire, Replayed(SCRAM_SHA_512, "bob", BOBS, "a-nonce"))
        assert wire.closed_by_peer()


@pytest.mark.parametrize(
    "first", [b"y,,n=bob,r=x", b"p=tls-unique,,n=bob,r=x", b"n,,n=bob,r=", b"n,,n==,r=x", b"n,,r=x,n=bob", b"\xff" * 50]
)
def test_a_first_message_of_scram_against_the_rules_is_refused(house: SecuredBroker, first: bytes) -> None:
    sent = request(SASL_HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-512"})
    client = connect(house, "LOGIN")
    client.sendall(sent + request(SASL_AUTHENTICATE, 1, {"auth_bytes": first}))
    assert b"s=" not in ends(client)


def test_a_flood_of_wrong_passwords_keeps_nobody_waiting(house: SecuredBroker) -> None:
    def attempt(number: int) -> bool:
        with Wire(house.addresses["LOGIN"], 30) as wire:
            exchange = (
                PlainClient("admin", f"{PASSWORDS['wrong']}{number}")
                if number % 2
                else ScramClient(SCRAM_SHA_512, "bob", f"{PASSWORDS['wrong']}{number}", "a-nonce")
            )
            try:
                log_in(wire, exchange)
            except LoginRefused:
                return wire.closed_by_peer()
        return False

    with ThreadPoolExecutor(20) as pool:
        attempts = [pool.submit(attempt, number) for number in range(400)]
        assert house.serves()
        assert all(each.result(60) for each in attempts)


# ---- tokens


def signed_by_the_public_key(house: SecuredBroker, key: bytes) -> str:
    """A token whose algorithm is a keyed hash, with the provider's public key as its secret."""
    import hashlib
    import hmac

    now = int(time.time())
    claims = {"sub": "admin", "aud": "ottla", "iss": "https://id.example", "iat": now, "exp": now + 600}
    text = f"{encoded({'alg': 'HS256', 'kid': 'one', 'typ': 'JWT'})}.{encoded(claims)}"
    signature = base64.urlsafe_b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).rstrip(b"=").decode()
    return f"{text}.{signature}"


def bad_tokens(house: SecuredBroker) -> dict[str, str]:
    now = int(time.time())
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = house.provider.public_key()
    good = house.token()
    head, body, signature = good.split(".")
    claims = jwt.decode(good, options={"verify_signature": False})

    def headed(**header: Any) -> str:
        return jwt.encode(claims, other, algorithm="RS256", headers={"kid": "one", **header})

    return {
        "expired": house.token(exp=now - 100),
        "from the future": house.token(nbf=now + 1000),
        "for somebody else": house.token(aud="another"),
        "for nobody": house.token(aud=None),
        "of another provider": house.token(iss="https://id.other"),
        "of no provider": house.token(iss=None),
        "without an end": house.token(exp=None),
        "without a user": house.token(sub=None),
        "with an empty user": house.token(sub=""),
        "with a list for a user": house.token(sub=["admin"]),
        "with an end that is text": house.token(exp="never"),
        "signed by another key": headed(),
        "with a key of its own": headed(jwk={"kty": "oct", "k": "AAAA"}),
        "with an address of keys": headed(jku=f"http://{house.pages}/", x5u=f"http://{house.pages}/"),
        "with a path for a key": headed(kid="../../../../etc/passwd"),
        "with an unknown key": headed(kid="k" * 10_000),
        "unsecured": f"{encoded({'alg': 'none'})}.{body}.",
        "unsecured, in capitals": f"{encoded({'alg': 'NONE', 'kid': 'one'})}.{body}.",
        "unsecured, with a signature": f"{encoded({'alg': 'none', 'kid': 'one'})}.{body}.{signature}",
        "by the public key as a secret": signed_by_the_public_key(
            house, public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        ),
        "by the public key's DER": signed_by_the_public_key(
            house, public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        ),
        **{
            f"by {algorithm}, which isn't the key's": f"{encoded({'alg': algorithm, 'kid': 'one'})}.{body}.{signature}"
            for algorithm in ("ES256", "ES512", "EdDSA", "PS256", "RS512", "HS512", "ES256K", "RS1")
        },
        "without a signature": f"{head}.{body}.",
        "with another body": f"{head}.{encoded(claims | {'sub': 'admin'})}.{signature}",
        "of two pieces": f"{head}.{body}",
        "of five pieces": f"{good}.{good}",
        "of 400 kB": house.token(more="x" * 400_000)[:-1] + "A",
        "deeply nested": f"{head}.{base64.urlsafe_b64encode(b'[' * 50_000).decode().rstrip('=')}.{signature}",
        "empty": "",
        "of other characters": "ä.ö.ü",
    }


def test_wrong_tokens_are_refused(house: SecuredBroker) -> None:
    for what, token in bad_tokens(house).items():
        with Wire(house.addresses["TOKENS"], CLOSED_S) as wire:
            try:
                log_in(wire, OAuthClient(token))
            except LoginRefused:
                assert wire.closed_by_peer(), what
            except Closed:
                pass
            else:
                raise AssertionError(f"a token {what} was accepted")
    with Wire(house.addresses["TOKENS"]) as wire:
        log_in(wire, OAuthClient(house.token()))
        assert wire.call(METADATA, 4, {"topics": []}).brokers


# ---- clients who say that they are brokers


def test_a_client_without_rights_on_the_cluster_is_no_broker(house: SecuredBroker) -> None:
    """A client that may read the topic is refused as soon as it says that it is a replica."""
    grant = {"resource_type": 2, "resource_name": TOPIC, "resource_pattern_type": 3, "principal": "User:alice",
             "host": "*", "operation": 3, "permission_type": 3}  # fmt: skip
    with house.logged_in() as wire:
        assert not wire.call(CREATE_ACLS, 3, {"creations": [grant]}).results[0].error_code
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000, "current_leader_epoch": -1}
    with house.logged_in("alice", "LOGIN") as wire:

        def fetched(version: int, **replica: Any) -> ErrorCode:
            asked = {"max_bytes": 1000, "session_epoch": -1, "topics": [{"topic": TOPIC, "partitions": [partition]}]}
            answer = wire.call(FETCH, version, asked | replica)
            return ErrorCode(answer.responses[0].partitions[0].error_code)

        def end_of_epoch(replica: int) -> ErrorCode:
            asked = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
            topics = [{"topic": TOPIC, "partitions": [asked]}]
            answer = wire.call(OFFSET_FOR_LEADER_EPOCH, 3, {"replica_id": replica, "topics": topics})
            return ErrorCode(answer.topics[0].partitions[0].error_code)

        assert fetched(11, replica_id=-1) == ErrorCode.none
        assert end_of_epoch(-1) == ErrorCode.none
        for replica in (0, 1, 2**31 - 1):
            assert fetched(11, replica_id=replica) == ErrorCode.topic_authorization_failed
        marker = {"producer_id": 1, "producer_epoch": 0, "transaction_result": True, "coordinator_epoch": 0}
        topics = [{"name": TOPIC, "partition_indexes": [0]}]
        asked = {"markers": [marker | {"topics": topics}]}
        answer = wire.call(WRITE_TXN_MARKERS, 1, asked)
        code = answer.markers[0].topics[0].partitions[0].error_code
        assert ErrorCode(code) == ErrorCode.cluster_authorization_failed


BETWEEN_BROKERS = {"LeaderAndIsr": 4, "StopReplica": 5, "UpdateMetadata": 6, "ControlledShutdown": 7, "Vote": 52,
                   "BeginQuorumEpoch": 53, "EndQuorumEpoch": 54, "AlterPartition": 56, "Envelope": 58,
                   "FetchSnapshot": 59, "BrokerRegistration": 62, "BrokerHeartbeat": 63,
                   "AllocateProducerIds": 67}  # fmt: skip


@pytest.mark.parametrize("api_key", BETWEEN_BROKERS.values(), ids=list(BETWEEN_BROKERS))
def test_requests_of_brokers_to_controllers_close_the_connection(house: SecuredBroker, api_key: int) -> None:
    for user in ("alice", "admin"):
        with house.logged_in(user, "LOGIN") as wire:
            wire.send(frame(struct.pack(">hhih", api_key, 0, 7, -1) + bytes(60)))
            assert wire.closed_by_peer()


# ---- the pages


def page(house: SecuredBroker, path: str, authorization: str | None) -> tuple[int, bytes]:
    host, _, port = house.pages.partition(":")
    pages = http.client.HTTPSConnection(host, int(port), timeout=CLOSED_S, context=house.trusting())
    try:
        pages.request("GET", path, headers={} if authorization is None else {"Authorization": authorization})
        answer = pages.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        pages.close()


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


PAGES = ("/metrics", "/healthz", "/readyz", "/v1/restart-risk", "/v1/caught-up")
UNAUTHORIZED = [None, "", "Basic", "Basic !!!!", "Basic " + "A" * 5000, "Bearer x", basic("admin", PASSWORDS["wrong"]),
                basic("", ""), basic("admin", ""), basic("bob", BOBS + "\0"),
                "Basic " + base64.b64encode(b"\xff:\xff").decode()]  # fmt: skip


@pytest.mark.parametrize("authorization", UNAUTHORIZED)
def test_pages_are_for_those_who_log_in(house: SecuredBroker, authorization: str | None) -> None:
    for path in ("/metrics", "/v1/restart-risk", "/v1/caught-up"):
        assert page(house, path, authorization)[0] in (0, 400, 401, 403)


# ---- secrets


def forms(secret: bytes) -> set[bytes]:
    """The secret as it is, in hexadecimal digits, and in base64 at each place within other bytes."""
    found = {secret, secret.hex().encode(), secret.hex().upper().encode()}
    for shift in range(3):
        moved = bytes(shift) + secret
        whole = moved[: len(moved) // 3 * 3]
        skipped = (shift * 8 + 5) // 6
        found |= {encode(whole)[skipped:] for encode in (base64.b64encode, base64.urlsafe_b64encode)}
    return found


def test_a_secret_is_recognised_in_each_form() -> None:
    secret = PASSWORDS["wrong"].encode()
    for text in (
        b"password=" + secret,
        secret.hex().encode(),
        *(base64.b64encode(b"u" * length + b":" + secret + b"tail") for length in range(4)),
    ):
        assert any(form in text for form in forms(secret)), text


def ottla(house: SecuredBroker, *arguments: str, properties: Path | None = None) -> bytes:
    """Everything that the command prints."""
    command = [sys.executable, "-m", "ottla.cli.main", *arguments]
    if properties is not None:
        command += ["-b", house.addresses["SECURE"], "--command-config", str(properties), "--timeout", "10"]
    environment = os.environ | {"OTTLA_CONFIG_FILE": str(house.folder / "contexts.toml")}
    done = subprocess.run(command, capture_output=True, timeout=60, check=False, env=environment)
    return done.stdout + done.stderr


def answers(house: SecuredBroker) -> Iterator[tuple[str, bytes]]:
    """The bytes of answers about settings and users, by what was asked."""
    broker = {"resource_type": 4, "resource_name": "0", "configuration_keys": None}
    topic = broker | {"resource_type": 2, "resource_name": TOPIC}
    settings = {"resources": [broker, broker | {"resource_name": ""}, topic],
                "include_synonyms": True, "include_documentation": True}  # fmt: skip
    with house.logged_in() as wire:
        for what, api_key, version, message in (
            ("DescribeConfigs", DESCRIBE_CONFIGS, 4, settings),
            ("DescribeUserScramCredentials", DESCRIBE_SCRAM, 0, {"users": None}),
        ):
            wire.ask(api_key, version, write_request(api_key, version, message))
            answer = wire.receive()
            assert len(answer) > 20, what
            yield what, answer


def test_no_secret_stands_in_anything_that_was_written_or_answered(house: SecuredBroker) -> None:
    """It comes last, so that all tests before it have written their lines."""
    token = house.token()
    with Wire(house.addresses["TOKENS"]) as wire:
        log_in(wire, OAuthClient(token))
    right = house.folder / "right.properties"
    trust = f"security.protocol=SASL_SSL\nssl.truststore.type=PEM\nssl.truststore.location={house.authority.trust}\n"
    wrong = house.folder / "wrong.properties"
    for path, password in ((right, PASSWORDS["admin"]), (wrong, PASSWORDS["wrong"])):
        jaas = f'{PLAIN_MODULE} username="admin" password="{password}";'
        path.write_text(f"{trust}sasl.mechanism=PLAIN\nsasl.jaas.config={jaas}\n")
    made = house.folder / "token.properties"
    store, server = f"embedded:{house.folder / 'broker' / 'data'}", house.folder / "broker" / "server.properties"
    commands: list[tuple[Path | None, tuple[str, ...]]] = [
        (right, ("tokens", "create", "--life", "1h", "--client-file", str(made))),
        (right, ("tokens", "list")),
        (right, ("tokens", "list", "--json")),
        (right, ("configs", "describe", "broker", "0", "--all", "--synonyms")),
        (right, ("configs", "describe", "broker", "0", "--all", "--json")),
        (right, ("users", "list")),
        (right, ("acls", "list")),
        (right, ("brokers", "list")),
        (wrong, ("topics", "list")),
        (wrong, ("--debug", "topics", "list")),
        (None, ("metadata", "ls", "--recursive", "--config", str(server))),
    ]
    said = {" ".join(arguments): ottla(house, *arguments, properties=path) for path, arguments in commands}
    keys = [line.split()[0].decode() for line in said[" ".join(commands[-1][1])].splitlines() if b"/" in line]
    assert any(key.startswith("scram/") or "scram" in key for key in keys), keys
    for key in {key.partition("/")[0]: key for key in keys}.values():  # one of each kind
        said[f"metadata get {key}"] = ottla(house, "metadata", "get", key, "--config", str(server))
    assert b"super.users" in said[" ".join(commands[3][1])], said
    assert "bob" in said["users list"].decode(), (said, store)
    secrets = house.secrets() | {"an identity provider's token": token.rpartition(".")[2].encode()}
    hmac_ = re.search(r'password="([^"]+)"', made.read_text())
    assert hmac_ is not None
    secrets["HMAC of a delegation token"] = base64.b64decode(hmac_[1])
    for path in PAGES:
        status, body = page(house, path, basic("admin", PASSWORDS["admin"]))
        assert status in (200, 503), (path, status)
        said[path] = body
    said |= dict(answers(house))
    said["the broker's log"] = house.broker.log_path.read_bytes()
    assert all(said.values()), [what for what, text in said.items() if not text]
    told = [
        f"{what} stands in {where}"
        for what, secret in secrets.items()
        for where, text in said.items()
        if any(form in text for form in forms(secret))
    ]
    assert not told, json.dumps(told, indent=1)
