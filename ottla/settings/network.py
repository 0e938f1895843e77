"""Listeners, sockets and limits on connections.

Pure: one row per setting. Names, types, defaults, bounds and update modes are those of Apache Kafka 4.3.1, but for the
default of `socket.receive.buffer.bytes`.
"""

from ottla.settings.setting import Importance, Kind, Members, OneOf, Range, Setting, Update

_THREADS = "one event loop serves everything, so thread counts have no meaning"
_ONE_TIME_OUT = "connecting counts towards replica.socket.timeout.ms"

SETTINGS = (
    Setting(
        "listeners", Kind.LIST, "PLAINTEXT://:9092", Importance.HIGH,
        "Addresses to listen on, as NAME://host:port; a change takes effect at the next start.",
        bounds=Members(may_be_empty=False), update=Update.PER_BROKER,
    ),
    Setting(
        "advertised.listeners", Kind.LIST, None, Importance.HIGH,
        "Addresses that clients are told, if they differ from listeners.", bounds=Members(may_be_empty=False),
    ),
    Setting(
        "listener.security.protocol.map",
        Kind.STRING, "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT", Importance.LOW,
        "Which security protocol each listener name speaks; a change takes effect at the next start.",
        update=Update.PER_BROKER,
    ),
    Setting(
        "inter.broker.listener.name", Kind.STRING, None, Importance.MEDIUM,
        "Listener over which brokers talk to each other.",
    ),
    Setting(
        "security.inter.broker.protocol", Kind.STRING, "PLAINTEXT", Importance.MEDIUM,
        "Protocol among brokers, when no inter-broker listener is named.",
        bounds=OneOf(("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")),
    ),
    Setting(
        "early.start.listeners", Kind.LIST, None, Importance.HIGH,
        "Listeners that open before the authorizer is ready.", bounds=Members(),
        instead="all listeners open together, once the broker serves",
    ),
    Setting(
        "socket.send.buffer.bytes", Kind.INT, "102400", Importance.HIGH,
        "Send buffer of client sockets; -1 leaves its size to the system.",
    ),
    Setting(
        "socket.receive.buffer.bytes", Kind.INT, "-1", Importance.HIGH,
        "Receive buffer of client sockets; -1, the default, leaves its size to the system (Apache Kafka's default is "
        "102400). ottla.buffered.memory.bytes.max doesn't count the bytes in it.",
    ),
    Setting(
        "socket.request.max.bytes", Kind.INT, "104857600", Importance.HIGH,
        "Largest request accepted.", bounds=Range(1),
    ),
    Setting(
        "socket.listen.backlog.size", Kind.INT, "50", Importance.MEDIUM,
        "Connections that may wait to be accepted.", bounds=Range(1),
    ),
    Setting(
        "socket.connection.setup.timeout.ms", Kind.LONG, "10000", Importance.MEDIUM,
        "First time-out of the attempt to connect to another broker.",
        instead=_ONE_TIME_OUT,
    ),
    Setting(
        "socket.connection.setup.timeout.max.ms", Kind.LONG, "30000", Importance.MEDIUM,
        "Longest time-out of an attempt to connect to another broker.",
        instead=_ONE_TIME_OUT,
    ),
    Setting(
        "max.connections.per.ip", Kind.INT, "2147483647", Importance.MEDIUM,
        "Connections allowed from one address.", bounds=Range(0), update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "max.connections.per.ip.overrides", Kind.STRING, "", Importance.MEDIUM,
        "Connections allowed from single addresses, as host:count, instead of max.connections.per.ip.",
        update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "max.connections", Kind.INT, "2147483647", Importance.MEDIUM,
        "Connections that are allowed in all; fewer if the process may not open so many files. If this number is "
        "reached, a connection to the inter-broker listener is still accepted if clients have another listener: the "
        "least recently used connection of a client is closed instead. `listener.name.<listener>.max.connections` "
        "bounds the connections of one listener.",
        bounds=Range(0), update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "max.connection.creation.rate", Kind.INT, "2147483647", Importance.MEDIUM,
        "New connections accepted per second; faster ones wait. Connections to the inter-broker listener don't count "
        "if clients have another listener. `listener.name.<listener>.max.connection.creation.rate` bounds the "
        "connections of one listener.",
        bounds=Range(0), update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "connections.max.idle.ms", Kind.LONG, "600000", Importance.MEDIUM,
        "Idle time after which a connection is closed.",
    ),
    Setting(
        "connections.max.reauth.ms", Kind.LONG, "0", Importance.MEDIUM,
        "Time after which a client must authenticate again.",
    ),
    Setting(
        "connection.failed.authentication.delay.ms", Kind.INT, "100", Importance.LOW,
        "Delay before a connection is closed whose authentication failed.", bounds=Range(0),
    ),
    Setting(
        "num.network.threads", Kind.INT, "3", Importance.HIGH,
        "Threads that serve sockets.", bounds=Range(1), update=Update.CLUSTER_WIDE, instead=_THREADS,
    ),
    Setting(
        "queued.max.requests", Kind.INT, "500", Importance.HIGH,
        "Requests that may wait to be handled.", bounds=Range(1),
        instead="ottla.connection.unanswered.requests.max bounds the requests of each connection",
    ),
    Setting(
        "queued.max.request.bytes", Kind.LONG, "-1", Importance.MEDIUM,
        "Bytes of requests that may wait to be handled.",
        instead="ottla.buffered.memory.bytes.max bounds the bytes held for all connections",
    ),
)
