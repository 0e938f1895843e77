"""Authentication, authorization and encryption.

Pure: one row per setting. Names, types, defaults, bounds and update modes are those of Apache Kafka 4.3.1.
"""

from ottla.settings.setting import Importance, Kind, Members, OneOf, Range, Setting, Update

_JAVA = "it names Java code, which has no place in a Python process"
_GSSAPI = "there is no GSSAPI yet"
_ASSERTION = "an identity provider gets the client's secret, and no assertion"
_PROTOCOL = "ssl.enabled.protocols says which versions of TLS are allowed"

SETTINGS = (
    Setting(
        "authorizer.class.name", Kind.STRING, "", Importance.LOW,
        "Authorizer that decides who may do what: org.apache.kafka.metadata.authorizer.StandardAuthorizer, which "
        "decides by ACLs. If it is empty, every client may do everything.",
    ),
    Setting(
        "super.users", Kind.STRING, "", Importance.MEDIUM,
        "Users who may do everything, whatever the ACLs say, as in User:admin;User:broker. With an authorizer, the "
        "user as which brokers connect to each other must be among them, or may do CLUSTER_ACTION on the cluster.",
    ),
    Setting(
        "allow.everyone.if.no.acl.found", Kind.BOOLEAN, "false", Importance.MEDIUM,
        "With an authorizer, every client may do everything on a resource for which there is no ACL at all.",
    ),
    Setting(
        "principal.builder.class",
        Kind.CLASS, "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder", Importance.MEDIUM,
        "Class that determines a connection's principal.", update=Update.PER_BROKER, instead=_JAVA,
    ),
    Setting(
        "security.providers", Kind.STRING, None, Importance.LOW,
        "Classes that provide security algorithms.", instead=_JAVA,
    ),
    Setting(
        "ssl.client.auth", Kind.STRING, "none", Importance.MEDIUM,
        "Whether clients must show a certificate.", bounds=OneOf(("required", "requested", "none")),
        update=Update.PER_BROKER,
    ),
    Setting(
        "ssl.principal.mapping.rules", Kind.STRING, "DEFAULT", Importance.LOW,
        "Rules by which a certificate's distinguished name becomes a user's name.",
    ),
    Setting(
        "ssl.allow.dn.changes", Kind.BOOLEAN, "false", Importance.LOW,
        "Allow another distinguished name when a certificate is renewed.",
    ),
    Setting(
        "ssl.allow.san.changes", Kind.BOOLEAN, "false", Importance.LOW,
        "Allow other alternative names when a certificate is renewed.",
    ),
    Setting(
        "ssl.protocol", Kind.STRING, "TLSv1.3", Importance.MEDIUM,
        "Protocol of the TLS context.", update=Update.PER_BROKER, instead=_PROTOCOL,
    ),
    Setting(
        "ssl.provider", Kind.STRING, None, Importance.MEDIUM,
        "Provider of TLS.", update=Update.PER_BROKER, instead=_JAVA,
    ),
    Setting(
        "ssl.enabled.protocols", Kind.LIST, "TLSv1.2,TLSv1.3", Importance.MEDIUM,
        "TLS versions that are allowed.", bounds=Members(), update=Update.PER_BROKER,
    ),
    Setting(
        "ssl.keystore.type", Kind.STRING, "JKS", Importance.MEDIUM,
        "Format of the key store.", update=Update.PER_BROKER,
    ),
    Setting(
        "ssl.keystore.location", Kind.STRING, None, Importance.MEDIUM,
        "File of the key store.", update=Update.PER_BROKER,
    ),
    Setting(
        "ssl.keystore.password", Kind.PASSWORD, None, Importance.MEDIUM,
        "Password of the key store.", update=Update.PER_BROKER,
    ),
    Setting(
        "ssl.key.password", Kind.PASSWORD, None, Importance.MEDIUM,
        "Password of the private key.", update=Update.PER_BROKER,
    ),
    Setting(
        "ssl.keystore.key", Kind.PASSWORD, None, Importance.MEDIUM,
        "Private key as PEM text.", update=Update.PER_BROKER,
    ),
    Setting(
        "ssl.keystore.certificate.chain", Kind.PASSWORD, None, Importance.MEDIUM,
        "Certificate chain as PEM text.", update=Update.PER_BROKER,
    ),
    Setting(
        "ssl.truststore.type", Kind.STRING, "JKS", Importance.MEDIUM,
        "Format of the trust store.", update=Update.PER_BROKER,
    ),
    Setting(
        "ssl.truststore.location", Kind.STRING, None, Importance.MEDIUM,
        "File of the trust store.", update=Update.PER_BROKER,
    ),
    Setting(
        "ssl.truststore.password", Kind.PASSWORD, None, Importance.MEDIUM,
        "Password of the trust store.", update=Update.PER_BROKER,
    ),
    Setting(
        "ssl.truststore.certificates", Kind.PASSWORD, None, Importance.MEDIUM,
        "Trusted certificates as PEM text.", update=Update.PER_BROKER,
    ),
    Setting(
        "ssl.keymanager.algorithm", Kind.STRING, "SunX509", Importance.MEDIUM,
        "Algorithm of the key manager.", update=Update.PER_BROKER, instead=_JAVA,
    ),
    Setting(
        "ssl.trustmanager.algorithm", Kind.STRING, "PKIX", Importance.MEDIUM,
        "Algorithm of the trust manager.", update=Update.PER_BROKER, instead=_JAVA,
    ),
    Setting(
        "ssl.endpoint.identification.algorithm", Kind.STRING, "https", Importance.LOW,
        "How a server's name is checked against its certificate.", update=Update.PER_BROKER,
    ),
    Setting(
        "ssl.secure.random.implementation", Kind.STRING, None, Importance.LOW,
        "Source of random numbers.", update=Update.PER_BROKER, instead=_JAVA,
    ),
    Setting(
        "ssl.cipher.suites", Kind.LIST, "", Importance.MEDIUM,
        "Cipher suites that are allowed.", bounds=Members(), update=Update.PER_BROKER,
    ),
    Setting(
        "ssl.engine.factory.class", Kind.CLASS, None, Importance.LOW,
        "Class that makes TLS engines.", update=Update.PER_BROKER, instead=_JAVA,
    ),
    Setting(
        "sasl.mechanism.inter.broker.protocol", Kind.STRING, "GSSAPI", Importance.MEDIUM,
        "SASL mechanism among brokers.", update=Update.PER_BROKER,
    ),
    Setting(
        "sasl.enabled.mechanisms", Kind.LIST, "GSSAPI", Importance.MEDIUM,
        "SASL mechanisms offered to clients.", bounds=Members(), update=Update.PER_BROKER,
    ),
    Setting(
        "sasl.server.callback.handler.class", Kind.CLASS, None, Importance.MEDIUM,
        "Class that checks credentials.",
    ),
    Setting(
        "sasl.server.max.receive.size", Kind.INT, "524288", Importance.MEDIUM,
        "Largest message that a client may send before it is authenticated.",
    ),
    Setting(
        "sasl.kerberos.principal.to.local.rules", Kind.LIST, "DEFAULT", Importance.MEDIUM,
        "Rules by which a Kerberos principal becomes a user's name.", bounds=Members(),
        update=Update.PER_BROKER, instead=_GSSAPI,
    ),
    Setting(
        "sasl.jaas.config", Kind.PASSWORD, None, Importance.MEDIUM,
        "Login modules and their options.", update=Update.PER_BROKER,
    ),
    Setting(
        "sasl.client.callback.handler.class", Kind.CLASS, None, Importance.MEDIUM,
        "Class that provides credentials of the client's side.", instead=_JAVA,
    ),
    Setting(
        "sasl.login.class", Kind.CLASS, None, Importance.MEDIUM,
        "Class that carries out the login.", instead=_JAVA,
    ),
    Setting(
        "sasl.login.callback.handler.class", Kind.CLASS, None, Importance.MEDIUM,
        "Class that provides credentials for the login.", instead=_JAVA,
    ),
    Setting(
        "sasl.kerberos.service.name", Kind.STRING, None, Importance.MEDIUM,
        "Kerberos name of the service.", update=Update.PER_BROKER, instead=_GSSAPI,
    ),
    Setting(
        "sasl.kerberos.kinit.cmd", Kind.STRING, "/usr/bin/kinit", Importance.MEDIUM,
        "Path of kinit.", update=Update.PER_BROKER, instead=_GSSAPI,
    ),
    Setting(
        "sasl.kerberos.ticket.renew.window.factor", Kind.DOUBLE, "0.8", Importance.MEDIUM,
        "Share of a Kerberos ticket's life after which it is renewed.", update=Update.PER_BROKER, instead=_GSSAPI,
    ),
    Setting(
        "sasl.kerberos.ticket.renew.jitter", Kind.DOUBLE, "0.05", Importance.MEDIUM,
        "Random share that is added to the time until a Kerberos ticket's renewal.",
        update=Update.PER_BROKER, instead=_GSSAPI,
    ),
    Setting(
        "sasl.kerberos.min.time.before.relogin", Kind.LONG, "60000", Importance.MEDIUM,
        "Shortest time between two Kerberos logins.", update=Update.PER_BROKER, instead=_GSSAPI,
    ),
    Setting(
        "sasl.login.refresh.window.factor", Kind.DOUBLE, "0.8", Importance.MEDIUM,
        "Share of a login token's life after which it is renewed.", update=Update.PER_BROKER,
    ),
    Setting(
        "sasl.login.refresh.window.jitter", Kind.DOUBLE, "0.05", Importance.MEDIUM,
        "Random share that is added to the time until a login token's renewal.",
        update=Update.PER_BROKER,
    ),
    Setting(
        "sasl.login.refresh.min.period.seconds", Kind.SHORT, "60", Importance.MEDIUM,
        "Shortest time between two renewals of a login token.", update=Update.PER_BROKER,
    ),
    Setting(
        "sasl.login.refresh.buffer.seconds", Kind.SHORT, "300", Importance.MEDIUM,
        "Time before a login token's end by which it is renewed.", update=Update.PER_BROKER,
    ),
    Setting(
        "sasl.login.connect.timeout.ms", Kind.INT, None, Importance.LOW,
        "Longest wait for a connection to the identity provider.",
    ),
    Setting(
        "sasl.login.read.timeout.ms", Kind.INT, None, Importance.LOW,
        "Longest wait for the identity provider's answer.",
    ),
    Setting(
        "sasl.login.retry.backoff.max.ms", Kind.LONG, "10000", Importance.LOW,
        "Longest pause between two attempts to log in.",
    ),
    Setting(
        "sasl.login.retry.backoff.ms", Kind.LONG, "100", Importance.LOW,
        "First pause between two attempts to log in.",
    ),
    Setting(
        "sasl.oauthbearer.jwt.retriever.class",
        Kind.CLASS, "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever", Importance.MEDIUM,
        "Class that fetches tokens.", instead=_JAVA,
    ),
    Setting(
        "sasl.oauthbearer.jwt.validator.class",
        Kind.CLASS, "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator", Importance.MEDIUM,
        "Class that checks tokens.", instead=_JAVA,
    ),
    Setting(
        "sasl.oauthbearer.scope", Kind.STRING, None, Importance.MEDIUM,
        "Scope in the request for a token.",
    ),
    Setting(
        "sasl.oauthbearer.client.credentials.client.id", Kind.STRING, None, Importance.MEDIUM,
        "Client id at the identity provider.",
    ),
    Setting(
        "sasl.oauthbearer.client.credentials.client.secret", Kind.PASSWORD, None, Importance.MEDIUM,
        "Client secret at the identity provider.",
    ),
    Setting(
        "sasl.oauthbearer.assertion.algorithm", Kind.STRING, "RS256", Importance.MEDIUM,
        "Algorithm that signs an assertion.", bounds=OneOf(("ES256", "RS256"), ignore_case=True), instead=_ASSERTION,
    ),
    Setting(
        "sasl.oauthbearer.assertion.claim.aud", Kind.STRING, None, Importance.MEDIUM,
        "Audience claim of an assertion.", instead=_ASSERTION,
    ),
    Setting(
        "sasl.oauthbearer.assertion.claim.exp.seconds", Kind.INT, "300", Importance.LOW,
        "Seconds an assertion is valid.", bounds=Range(0, 86400), instead=_ASSERTION,
    ),
    Setting(
        "sasl.oauthbearer.assertion.claim.iss", Kind.STRING, None, Importance.MEDIUM,
        "Issuer claim of an assertion.", instead=_ASSERTION,
    ),
    Setting(
        "sasl.oauthbearer.assertion.claim.jti.include", Kind.BOOLEAN, "false", Importance.MEDIUM,
        "Put a unique id into an assertion.", instead=_ASSERTION,
    ),
    Setting(
        "sasl.oauthbearer.assertion.claim.nbf.seconds", Kind.INT, "60", Importance.LOW,
        "Seconds in the past from which an assertion is valid.", bounds=Range(0, 3600), instead=_ASSERTION,
    ),
    Setting(
        "sasl.oauthbearer.assertion.claim.sub", Kind.STRING, None, Importance.MEDIUM,
        "Subject claim of an assertion.", instead=_ASSERTION,
    ),
    Setting(
        "sasl.oauthbearer.assertion.file", Kind.STRING, None, Importance.MEDIUM,
        "File with a ready assertion.", instead=_ASSERTION,
    ),
    Setting(
        "sasl.oauthbearer.assertion.private.key.file", Kind.STRING, None, Importance.MEDIUM,
        "Private key that signs assertions.", instead=_ASSERTION,
    ),
    Setting(
        "sasl.oauthbearer.assertion.private.key.passphrase", Kind.PASSWORD, None, Importance.MEDIUM,
        "Passphrase of the private key that signs assertions.", instead=_ASSERTION,
    ),
    Setting(
        "sasl.oauthbearer.assertion.template.file", Kind.STRING, None, Importance.MEDIUM,
        "File with headers and claims of assertions.", instead=_ASSERTION,
    ),
    Setting(
        "sasl.oauthbearer.scope.claim.name", Kind.STRING, "scope", Importance.LOW,
        "Name of the scope claim.",
    ),
    Setting(
        "sasl.oauthbearer.sub.claim.name", Kind.STRING, "sub", Importance.LOW,
        "Name of the subject claim.",
    ),
    Setting(
        "sasl.oauthbearer.token.endpoint.url", Kind.STRING, None, Importance.MEDIUM,
        "Where brokers get the tokens with which they log in at one another by OAUTHBEARER: an identity provider "
        "(`https:`, `http:`), or a file (`file:`).",
    ),
    Setting(
        "sasl.oauthbearer.jwks.endpoint.url", Kind.STRING, None, Importance.MEDIUM,
        "URL from which the keys to check tokens are fetched.",
    ),
    Setting(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms", Kind.LONG, "3600000", Importance.LOW,
        "Time between two fetches of the keys to check tokens.",
    ),
    Setting(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", Kind.LONG, "100", Importance.LOW,
        "First pause after a failed fetch of keys.",
    ),
    Setting(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", Kind.LONG, "10000", Importance.LOW,
        "Longest pause after failed fetches of keys.",
    ),
    Setting(
        "sasl.oauthbearer.clock.skew.seconds", Kind.INT, "30", Importance.LOW,
        "Allowed difference between the clocks of broker and identity provider.",
    ),
    Setting(
        "sasl.oauthbearer.expected.audience", Kind.LIST, "", Importance.HIGH,
        "Audiences that a token must name.", bounds=Members(),
    ),
    Setting(
        "sasl.oauthbearer.expected.issuer", Kind.STRING, None, Importance.HIGH,
        "Issuer that a token must come from.",
    ),
    Setting(
        "delegation.token.secret.key", Kind.PASSWORD, None, Importance.MEDIUM,
        "Key that signs delegation tokens.",
    ),
    Setting(
        "delegation.token.max.lifetime.ms", Kind.LONG, "604800000", Importance.MEDIUM,
        "Longest life of a delegation token.", bounds=Range(1),
    ),
    Setting(
        "delegation.token.expiry.time.ms", Kind.LONG, "86400000", Importance.MEDIUM,
        "Life of a delegation token between renewals.", bounds=Range(1),
    ),
    Setting(
        "delegation.token.expiry.check.interval.ms", Kind.LONG, "3600000", Importance.LOW,
        "Time between two searches for expired tokens.", bounds=Range(1),
    ),
)
