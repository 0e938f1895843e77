"""Combinations of settings that Apache Kafka refuses, and names of cipher suites."""

from __future__ import annotations

import pickle
import ssl

import pytest

from ottla.security.ciphers import TLS13, openssl_name
from ottla.security.tls_settings import InvalidTls, client_tls_settings
from ottla.settings.secret import Secret

PEM_KEY = {"ssl.keystore.type": "PEM"}
INLINE = {"ssl.keystore.key": "k", "ssl.keystore.certificate.chain": "c"}


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({"ssl.keystore.key": "k"}, "SSL private key can be specified only for PEM, but key store type is JKS."),
        (
            {**PEM_KEY, "ssl.keystore.key": "k"},
            "SSL private key is specified, but certificate chain is not specified.",
        ),
        (
            {**PEM_KEY, **INLINE, "ssl.keystore.location": "/k"},
            "Both SSL key store location and separate private key are specified.",
        ),
        (
            {**PEM_KEY, **INLINE, "ssl.keystore.password": "p"},
            "SSL key store password cannot be specified with PEM format, only key password may be specified.",
        ),
        (
            {"ssl.keystore.certificate.chain": "c"},
            "SSL certificate chain is specified, but private key is not specified",
        ),
        (
            {**PEM_KEY, "ssl.keystore.location": "/k", "ssl.keystore.password": "p"},
            "SSL key store password cannot be specified with PEM format, only key password may be specified.",
        ),
        (
            {"ssl.keystore.password": "p"},
            "SSL key store is not specified, but key store password is specified.",
        ),
        (
            {"ssl.keystore.location": "/k"},
            "SSL key store is specified, but key store password is not specified.",
        ),
        (
            {"ssl.truststore.certificates": "c"},
            "SSL trust store certs can be specified only for PEM, but trust store type is JKS.",
        ),
        (
            {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": "c", "ssl.truststore.location": "/t"},
            "Both SSL trust store location and separate trust certificates are specified.",
        ),
        (
            {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/t", "ssl.truststore.password": "p"},
            "SSL trust store password cannot be specified for PEM format.",
        ),
        (
            {"ssl.truststore.password": "p"},
            "SSL trust store is not specified, but trust store password is specified.",
        ),
        ({"ssl.keystore.type": "BKS"}, "ssl.keystore.type is BKS: it must be one of PEM, PKCS12, JKS"),
        (
            {"ssl.enabled.protocols": "TLSv1.1,TLSv1.2"},
            "ssl.enabled.protocols is TLSv1.1: it must be among TLSv1.2, TLSv1.3",
        ),
        ({"ssl.cipher.suites": "TLS_NULL"}, "ssl.cipher.suites has the unsupported cipher suite TLS_NULL"),
        (
            {"ssl.endpoint.identification.algorithm": "ldaps"},
            "ssl.endpoint.identification.algorithm is ldaps: it must be https, or empty",
        ),
    ],
)
def test_refused(properties: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidTls) as caught:
        client_tls_settings(properties)
    assert str(caught.value) == problem


def test_single_suites_of_tls_1_3_are_refused() -> None:
    with pytest.raises(InvalidTls, match=r"some suites of TLS 1\.3 only"):
        client_tls_settings({"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"})
    client_tls_settings({"ssl.cipher.suites": ",".join(TLS13)})


def test_secrets_are_never_printed() -> None:
    settings = client_tls_settings({"ssl.keystore.location": "/k", "ssl.keystore.password": "geheim"})
    assert settings.keystore_password == Secret("geheim")
    assert "geheim" not in f"{settings} {settings!r} {settings.keystore_password}"
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_javas_names_of_suites_are_openssls() -> None:
    ours = {openssl_name(name) for name in JAVAS_DEFAULT}
    assert None not in ours
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers(f"{':'.join(map(str, ours))}:@SECLEVEL=0")
    assert {each["name"] for each in context.get_ciphers()} >= ours


JAVAS_DEFAULT = """
TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384
TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
TLS_DHE_RSA_WITH_AES_256_GCM_SHA384 TLS_DHE_RSA_WITH_CHACHA20_POLY1305_SHA256 TLS_DHE_RSA_WITH_AES_128_GCM_SHA256
TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384 TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384
TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256 TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256 TLS_DHE_RSA_WITH_AES_256_CBC_SHA256
TLS_DHE_RSA_WITH_AES_128_CBC_SHA256 TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA
TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA TLS_DHE_RSA_WITH_AES_256_CBC_SHA
TLS_DHE_RSA_WITH_AES_128_CBC_SHA TLS_RSA_WITH_AES_256_GCM_SHA384 TLS_RSA_WITH_AES_128_GCM_SHA256
TLS_RSA_WITH_AES_256_CBC_SHA256 TLS_RSA_WITH_AES_128_CBC_SHA256 TLS_RSA_WITH_AES_256_CBC_SHA
TLS_RSA_WITH_AES_128_CBC_SHA
""".split()
