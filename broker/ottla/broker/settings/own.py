"""Settings that only Ottla has. All begin with `ottla.`.

Pure: one row per setting.
"""

from ottla.broker.settings.setting import Importance, Kind, OneOf, Pattern, Range, Setting, Update

_STORE = Pattern(r"embedded(:.+)?", "embedded, or embedded:PATH")
_ADDRESS = Pattern(r"|\S*:[0-9]+", "host:port, or nothing")

SETTINGS = (
    Setting(
        "ottla.metadata.store", Kind.STRING, "embedded", Importance.HIGH,
        "Where metadata is kept: `embedded` is a file in the first log directory, `embedded:PATH` a file elsewhere.",
        bounds=_STORE,
    ),
    Setting(
        "ottla.http.listener", Kind.STRING, "", Importance.MEDIUM,
        "Address as host:port for /metrics, /healthz and /readyz; nothing switches them off.", bounds=_ADDRESS,
    ),
    Setting(
        "ottla.buffered.memory.bytes.max", Kind.LONG, "268435456", Importance.HIGH,
        "Bytes of requests and responses held for all connections together; beyond it the broker stops reading.",
        bounds=Range(1048576),
    ),
    Setting(
        "ottla.connection.unanswered.requests.max", Kind.INT, "100", Importance.MEDIUM,
        "Requests of one connection that may wait for their answers; beyond it the broker stops reading from it.",
        bounds=Range(1),
    ),
    Setting(
        "ottla.connection.unanswered.bytes.max", Kind.LONG, "67108864", Importance.MEDIUM,
        "Bytes of the requests of one connection that may wait for their answers; beyond it the broker stops reading.",
        bounds=Range(1),
    ),
    Setting(
        "ottla.validate.records", Kind.BOOLEAN, "false", Importance.MEDIUM,
        "Look at the records in every batch that producers send, compressed or not, as Apache Kafka does.",
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
