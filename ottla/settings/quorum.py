"""Settings of Apache Kafka's KRaft quorum, which Ottla doesn't need because it has a metadata store.

Pure: one row per setting. Names, types, defaults, bounds and update modes are those of Apache Kafka 4.3.1.
"""

from ottla.settings.setting import Importance, Kind, Members, Pattern, Range, Setting

_VOTERS = Pattern(r"[0-9]+@\S+:[0-9]+", "id@host:port")
_ADDRESSES = Pattern(r"\S+:[0-9]+", "host:port")
_CONTROLLER = "the controller has no listener of its own: it works through the metadata store"
_QUORUM = "there is no quorum of controllers: ottla.metadata.store names the metadata store"
_METADATA_LOG = "there is no metadata log: ottla.metadata.store names the metadata store"

SETTINGS = (
    Setting(
        "controller.listener.names", Kind.LIST, None, Importance.HIGH,
        "Listeners of the controllers.", bounds=Members(), instead=_CONTROLLER,
    ),
    Setting(
        "sasl.mechanism.controller.protocol", Kind.STRING, "GSSAPI", Importance.HIGH,
        "SASL mechanism towards controllers.", instead=_CONTROLLER,
    ),
    Setting(
        "controller.performance.sample.period.ms", Kind.LONG, "60000", Importance.MEDIUM,
        "Time between two reports on the controller's speed.", bounds=Range(100), instead=_CONTROLLER, internal=True,
    ),
    Setting(
        "controller.performance.always.log.threshold.ms", Kind.LONG, "2000", Importance.MEDIUM,
        "Time beyond which a controller event is reported.", bounds=Range(0), instead=_CONTROLLER, internal=True,
    ),
    Setting(
        "controller.quorum.voters", Kind.LIST, "", Importance.HIGH,
        "Voters of the quorum, as id@host:port.", bounds=_VOTERS, instead=_QUORUM,
    ),
    Setting(
        "controller.quorum.bootstrap.servers", Kind.LIST, "", Importance.HIGH,
        "Addresses at which the quorum is found first.", bounds=_ADDRESSES, instead=_QUORUM,
    ),
    Setting(
        "controller.quorum.election.timeout.ms", Kind.INT, "1000", Importance.HIGH,
        "Longest wait in an election.", bounds=Range(0), instead=_QUORUM,
    ),
    Setting(
        "controller.quorum.fetch.timeout.ms", Kind.INT, "2000", Importance.HIGH,
        "Time without an answer of the quorum's leader after which an election starts.",
        bounds=Range(0), instead=_QUORUM,
    ),
    Setting(
        "controller.quorum.election.backoff.max.ms", Kind.INT, "1000", Importance.HIGH,
        "Longest pause between two elections.", bounds=Range(0), instead=_QUORUM,
    ),
    Setting(
        "controller.quorum.append.linger.ms", Kind.INT, "25", Importance.MEDIUM,
        "How long the quorum's leader gathers writes.", bounds=Range(0), instead=_QUORUM,
    ),
    Setting(
        "controller.quorum.request.timeout.ms", Kind.INT, "2000", Importance.MEDIUM,
        "Longest wait for an answer in the quorum.", bounds=Range(0), instead=_QUORUM,
    ),
    Setting(
        "controller.quorum.retry.backoff.ms", Kind.INT, "20", Importance.LOW,
        "Pause before a request in the quorum is sent again.", bounds=Range(0), instead=_QUORUM,
    ),
    Setting(
        "controller.quorum.auto.join.enable", Kind.BOOLEAN, "false", Importance.LOW,
        "Let a controller join the voters by itself.", instead=_QUORUM,
    ),
    Setting(
        "controller.quorum.fetch.snapshot.max.bytes", Kind.INT, "1048576", Importance.LOW,
        "Bytes of a metadata snapshot fetched at once.", bounds=Range(1), instead=_QUORUM,
    ),
    Setting(
        "controller.quorum.fetch.max.bytes", Kind.INT, "1048576", Importance.LOW,
        "Bytes of the metadata log fetched at once.", bounds=Range(1), instead=_QUORUM,
    ),
    Setting(
        "metadata.log.dir", Kind.STRING, None, Importance.HIGH,
        "Directory of the metadata log.", instead=_METADATA_LOG,
    ),
    Setting(
        "metadata.log.segment.bytes", Kind.INT, "1073741824", Importance.HIGH,
        "Size at which a segment of the metadata log is closed.", bounds=Range(8388608), instead=_METADATA_LOG,
    ),
    Setting(
        "metadata.log.segment.ms", Kind.LONG, "604800000", Importance.HIGH,
        "Age at which a segment of the metadata log is closed.", instead=_METADATA_LOG,
    ),
    Setting(
        "metadata.max.retention.bytes", Kind.LONG, "104857600", Importance.HIGH,
        "Size of the metadata log beyond which its oldest parts are deleted.", instead=_METADATA_LOG,
    ),
    Setting(
        "metadata.max.retention.ms", Kind.LONG, "604800000", Importance.HIGH,
        "Age beyond which parts of the metadata log are deleted.", instead=_METADATA_LOG,
    ),
    Setting(
        "metadata.max.idle.interval.ms", Kind.INT, "500", Importance.LOW,
        "Time between two empty writes to the metadata log.", bounds=Range(0), instead=_METADATA_LOG,
    ),
    Setting(
        "metadata.log.max.record.bytes.between.snapshots", Kind.LONG, "20971520", Importance.HIGH,
        "Bytes of new metadata after which a new snapshot is written.", bounds=Range(1), instead=_METADATA_LOG,
    ),
    Setting(
        "metadata.log.max.snapshot.interval.ms", Kind.LONG, "3600000", Importance.HIGH,
        "Time after which a new metadata snapshot is written.", bounds=Range(0), instead=_METADATA_LOG,
    ),
    Setting(
        "internal.metadata.log.segment.bytes", Kind.INT, None, Importance.LOW,
        "The same as metadata.log.segment.bytes, for tests.", instead=_METADATA_LOG, internal=True,
    ),
    Setting(
        "internal.metadata.max.batch.size.in.bytes", Kind.INT, "8388608", Importance.LOW,
        "Largest batch of the metadata log, for tests.", instead=_METADATA_LOG, internal=True,
    ),
    Setting(
        "internal.metadata.delete.delay.millis", Kind.LONG, "60000", Importance.LOW,
        "Delay before the metadata log's files are deleted, for tests.", instead=_METADATA_LOG, internal=True,
    ),
)
