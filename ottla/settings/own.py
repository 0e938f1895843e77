"""Settings that only Ottla has, of brokers and of topics. All begin with `ottla.`.

Pure: one row per setting.
"""

from ottla.settings.listeners import PROTOCOLS
from ottla.settings.setting import Importance, Kind, OneOf, Pattern, Range, Setting, Update

_STORE = Pattern(
    r"embedded(:.+)?|etcd:[^\s,/]+:[0-9]+(,[^\s,/]+:[0-9]+)*",
    "embedded, embedded:PATH, or etcd:HOST:PORT,HOST:PORT,…",
)
_ADDRESS = Pattern(r"|\S*:[0-9]+", "host:port, or nothing")
_OWNER = Pattern(
    r"|[a-z0-9-]{1,63}/[a-z0-9.-]{1,253}/[0-9A-Za-z-]{1,64}/[0-9TZ:.+-]{1,40}(/[0-9A-Za-z-]{0,64})?",
    "namespace/name/uid/created/uid of the Cluster, or nothing",
)

SETTINGS = (
    Setting(
        "ottla.metadata.store", Kind.STRING, "embedded", Importance.HIGH,
        "Where metadata is kept: `embedded` is a file in the first log directory, `embedded:PATH` a file elsewhere; "
        "`etcd:` and its endpoints name an etcd of version 3.5 or newer.",
        bounds=_STORE,
    ),
    Setting(
        "ottla.metadata.etcd.prefix", Kind.STRING, "/ottla/default/", Importance.HIGH,
        "Prefix of all of the cluster's keys in etcd. Clusters that share one etcd have different prefixes.",
        bounds=Pattern(r"/\S*", "/ottla/NAME/"),
    ),
    Setting(
        "ottla.metadata.etcd.timeout.ms", Kind.INT, "5000", Importance.LOW,
        "Longest wait for one answer of etcd, including attempts at other endpoints.", bounds=Range(100),
    ),
    Setting(
        "ottla.metadata.etcd.user", Kind.STRING, "", Importance.MEDIUM,
        "User of etcd's own authentication; empty if etcd asks for none.",
    ),
    Setting(
        "ottla.metadata.etcd.password.file", Kind.STRING, "", Importance.MEDIUM,
        "File with the password of ottla.metadata.etcd.user, read at each authentication.",
    ),
    Setting(
        "ottla.metadata.etcd.tls", Kind.BOOLEAN, "false", Importance.MEDIUM, "Talk to etcd over TLS.",
    ),
    Setting(
        "ottla.metadata.etcd.tls.ca.file", Kind.STRING, "", Importance.MEDIUM,
        "PEM file of the authorities that etcd's certificate may come from; empty means the system's authorities.",
    ),
    Setting(
        "ottla.metadata.etcd.tls.certificate.file", Kind.STRING, "", Importance.MEDIUM,
        "PEM file of the broker's own certificate, if etcd asks for one. Read at start.",
    ),
    Setting(
        "ottla.metadata.etcd.tls.key.file", Kind.STRING, "", Importance.MEDIUM,
        "PEM file of the key to ottla.metadata.etcd.tls.certificate.file. Read at start.",
    ),
    Setting(
        "ottla.event.loop.stall.ms.max", Kind.LONG, "30000", Importance.LOW,
        "How long a broker's event loop may stand still, as on a disk that doesn't answer, before the broker's "
        "registration is no longer renewed; one `broker.session.timeout.ms` later other brokers lead its partitions. "
        "The registration of a process that has ended or was stopped (SIGSTOP) isn't renewed in any case.",
        bounds=Range(1000),
    ),
    Setting(
        "ottla.listener.addresses", Kind.LIST, "", Importance.MEDIUM,
        "Addresses that clients are told, as LISTENER://host:port, for addresses that are known only while the broker"
        " runs. For its listener, such an address replaces the one in advertised.listeners.",
        bounds=Pattern(r"[^:/,\s]+://[^,/\s]+:[0-9]{1,5}", "LISTENER://host:port"), update=Update.PER_BROKER,
    ),
    Setting(
        "ottla.brokers.drained", Kind.LIST, "", Importance.MEDIUM,
        "Ids of brokers that are not to lead partitions: they keep their replicas, and lead only partitions that no "
        "other broker can lead.",
        bounds=Pattern(r"[0-9]{1,9}", "broker ids"), update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "ottla.quick.death.enable", Kind.BOOLEAN, "true", Importance.MEDIUM,
        "Count a broker as dead as soon as its connection to the controller is cut and then refused, without waiting "
        "for the end of its session.",
    ),
    Setting(
        "ottla.http.listener", Kind.STRING, "", Importance.MEDIUM,
        "Address as host:port for /metrics, /healthz and /readyz; empty switches these pages off.", bounds=_ADDRESS,
    ),
    Setting(
        "ottla.http.security.protocol", Kind.STRING, "PLAINTEXT", Importance.MEDIUM,
        "Protocol of ottla.http.listener, as of a listener by the name HTTP: with SSL or SASL_SSL the pages are "
        "encrypted, and with SASL_PLAINTEXT or SASL_SSL readers give a user and a password. The other settings of "
        "listeners hold under the prefix `listener.name.http.`. Without a login /healthz and /readyz stay open.",
        bounds=OneOf(PROTOCOLS, ignore_case=True),
    ),
    Setting(
        "ottla.buffered.memory.bytes.max", Kind.LONG, "268435456", Importance.HIGH,
        "Most bytes of requests and responses in memory, for all connections together. At this bound the broker "
        "stops reading.",
        bounds=Range(1048576),
    ),
    Setting(
        "ottla.connection.unanswered.requests.max", Kind.INT, "100", Importance.MEDIUM,
        "Most requests of one connection that may wait for their answers. At this bound the broker stops reading from "
        "the connection.",
        bounds=Range(1),
    ),
    Setting(
        "ottla.connection.unanswered.bytes.max", Kind.LONG, "67108864", Importance.MEDIUM,
        "Most bytes of one connection's requests that may wait for their answers. At this bound the broker stops "
        "reading from the connection.",
        bounds=Range(1),
    ),
    Setting(
        "ottla.login.timeout.ms", Kind.INT, "30000", Importance.MEDIUM,
        "Longest time that a connection to a listener with SASL may take to log in. Afterwards the broker closes it.",
        bounds=Range(1),
    ),
    Setting(
        "ottla.delegation.tokens.per.owner.max", Kind.INT, "10000", Importance.LOW,
        "Most delegation tokens of one owner. Another one is refused with POLICY_VIOLATION. Apache Kafka has no such "
        "bound.", bounds=Range(1),
    ),
    Setting(
        "ottla.validate.records", Kind.BOOLEAN, "true", Importance.MEDIUM,
        "Check the records in every batch that producers send, compressed or not, as Apache Kafka does. If it is "
        "false, one producer that writes malformed records can stop all consumers of its topic; records of compacted "
        "topics are checked all the same.",
        update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "ottla.log.format", Kind.STRING, "text", Importance.LOW,
        "How the broker writes its own log: for people or for programs.", bounds=OneOf(("text", "json")),
    ),
    Setting(
        "ottla.log.level", Kind.STRING, "INFO", Importance.LOW,
        "Least severity that the broker's own log shows.",
        bounds=OneOf(("DEBUG", "INFO", "WARNING", "ERROR"), ignore_case=True),
    ),
)

TOPIC_SETTINGS = (
    Setting(
        "ottla.owner", Kind.STRING, "", Importance.LOW,
        "The Kubernetes resource that this topic follows. The operator sets it, and recognises by it a topic whose "
        "resource is gone.",
        bounds=_OWNER,
    ),
    Setting(
        "ottla.owner.deletion.policy", Kind.STRING, "Retain", Importance.LOW,
        "What the operator does when the topic's owner is gone: Delete deletes the topic, Retain keeps it without an "
        "owner, and Held (set when many owners vanished at once) keeps it until a person confirms the deletion.",
        bounds=OneOf(("Delete", "Retain", "Held")),
    ),
)
"""The settings of a topic that Kafka doesn't have. DescribeConfigs lists such a setting only if the topic has a value
for it, because Kafka's tools don't expect these settings."""

OVERRIDES = "ottla.overrides"
"""The name of an entry in which DescribeConfigs returns all dynamic settings of a topic or of a single broker as JSON.
The entry is returned only to a client that asks for this name."""

LOAD = "ottla.load"
"""The name of an entry in which DescribeConfigs returns the counters of a broker's work since its start as JSON."""

DAMAGED = "ottla.damaged"
"""The name of an entry in which DescribeConfigs returns the unreadable places that a broker has found in its logs as
JSON."""

RECOVERED = "ottla.recovered"
"""The name of an entry in which DescribeConfigs returns the bytes that recovery cut off the logs at a broker's start as
JSON."""
