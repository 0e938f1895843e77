"""Settings of one topic.

Pure: one row per setting. Names, types, defaults, bounds and update modes are those of Apache Kafka 4.3.1.
"""

from ottla.settings.setting import Importance, Kind, Members, OneOf, Pattern, Range, Setting

_THROTTLED = Pattern(r"|\*|[0-9]+:[0-9]+", "partition:broker, or *")
_TIERED = "there is no tiered storage yet"
_PREALLOCATION = "files grow as they are written"
_COMPRESSION = "the broker compresses at each codec's default level"

SETTINGS = (
    Setting(
        "segment.bytes", Kind.INT, "1073741824", Importance.MEDIUM,
        "Size at which a segment is closed.", bounds=Range(1048576), synonyms=("log.segment.bytes",),
    ),
    Setting(
        "segment.ms", Kind.LONG, "604800000", Importance.MEDIUM,
        "Age at which a segment is closed.", bounds=Range(1), synonyms=("log.roll.ms", "log.roll.hours"),
    ),
    Setting(
        "segment.jitter.ms", Kind.LONG, "0", Importance.MEDIUM,
        "Longest random time that is subtracted from the age at which a segment is closed.", bounds=Range(0),
        synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ),
    Setting(
        "segment.index.bytes", Kind.INT, "10485760", Importance.MEDIUM,
        "Largest size of an index file.", bounds=Range(4), synonyms=("log.index.size.max.bytes",),
    ),
    Setting(
        "flush.messages", Kind.LONG, "9223372036854775807", Importance.MEDIUM,
        "Records between two fsyncs.", bounds=Range(1), synonyms=("log.flush.interval.messages",),
    ),
    Setting(
        "flush.ms", Kind.LONG, "9223372036854775807", Importance.MEDIUM,
        "Longest time a record stays without fsync.", bounds=Range(0),
        synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    ),
    Setting(
        "retention.bytes", Kind.LONG, "-1", Importance.MEDIUM,
        "Size of a partition beyond which old segments are deleted; -1 means no limit.",
        synonyms=("log.retention.bytes",),
    ),
    Setting(
        "retention.ms", Kind.LONG, "604800000", Importance.MEDIUM,
        "Age at which a segment is deleted; -1 means never.", bounds=Range(-1),
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ),
    Setting(
        "max.message.bytes", Kind.INT, "1048588", Importance.MEDIUM,
        "Largest record batch accepted, after compression.", bounds=Range(0), synonyms=("message.max.bytes",),
    ),
    Setting(
        "index.interval.bytes", Kind.INT, "4096", Importance.MEDIUM,
        "Bytes between two entries of an index.", bounds=Range(0), synonyms=("log.index.interval.bytes",),
    ),
    Setting(
        "delete.retention.ms", Kind.LONG, "86400000", Importance.MEDIUM,
        "How long tombstones stay in a compacted topic.", bounds=Range(0),
        synonyms=("log.cleaner.delete.retention.ms",),
    ),
    Setting(
        "min.compaction.lag.ms", Kind.LONG, "0", Importance.MEDIUM,
        "Age before which a record is never compacted away.", bounds=Range(0),
        synonyms=("log.cleaner.min.compaction.lag.ms",),
    ),
    Setting(
        "max.compaction.lag.ms", Kind.LONG, "9223372036854775807", Importance.MEDIUM,
        "Age at which a record is eligible for compaction in any case.", bounds=Range(1),
        synonyms=("log.cleaner.max.compaction.lag.ms",),
    ),
    Setting(
        "file.delete.delay.ms", Kind.LONG, "60000", Importance.MEDIUM,
        "Time between the removal of a segment and the deletion of its files.", bounds=Range(0),
        synonyms=("log.segment.delete.delay.ms",),
    ),
    Setting(
        "min.cleanable.dirty.ratio", Kind.DOUBLE, "0.5", Importance.MEDIUM,
        "Share of not yet compacted bytes at which a log is compacted.", bounds=Range(0, 1),
        synonyms=("log.cleaner.min.cleanable.ratio",),
    ),
    Setting(
        "cleanup.policy", Kind.LIST, "delete", Importance.MEDIUM,
        "What becomes of old segments: delete, compact, or both.", bounds=Members(("compact", "delete")),
        synonyms=("log.cleanup.policy",),
    ),
    Setting(
        "unclean.leader.election.enable", Kind.BOOLEAN, "false", Importance.MEDIUM,
        "Let a replica outside the ISR lead when no other is left; may lose records.",
        synonyms=("unclean.leader.election.enable",),
    ),
    Setting(
        "min.insync.replicas", Kind.INT, "1", Importance.MEDIUM,
        "Replicas in sync that a write with acks=all needs.", bounds=Range(1), synonyms=("min.insync.replicas",),
    ),
    Setting(
        "compression.type", Kind.STRING, "producer", Importance.MEDIUM,
        "Codec in which batches are stored; `producer` keeps each batch's own codec.",
        bounds=OneOf(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")), synonyms=("compression.type",),
    ),
    Setting(
        "compression.gzip.level", Kind.INT, "-1", Importance.MEDIUM,
        "Level at which the broker compresses with gzip.", bounds=Range(1, 9, also=-1),
        synonyms=("compression.gzip.level",),
        instead=_COMPRESSION,
    ),
    Setting(
        "compression.lz4.level", Kind.INT, "9", Importance.MEDIUM,
        "Level at which the broker compresses with lz4.", bounds=Range(1, 17), synonyms=("compression.lz4.level",),
        instead=_COMPRESSION,
    ),
    Setting(
        "compression.zstd.level", Kind.INT, "3", Importance.MEDIUM,
        "Level at which the broker compresses with zstd.", bounds=Range(-131072, 22),
        synonyms=("compression.zstd.level",),
        instead=_COMPRESSION,
    ),
    Setting(
        "preallocate", Kind.BOOLEAN, "false", Importance.MEDIUM,
        "Allocate the whole file of a new segment on the disk when it is created.", synonyms=("log.preallocate",),
        instead=_PREALLOCATION,
    ),
    Setting(
        "message.timestamp.type", Kind.STRING, "CreateTime", Importance.MEDIUM,
        "Whose clock a record's timestamp comes from: producer's or broker's.",
        bounds=OneOf(("CreateTime", "LogAppendTime")), synonyms=("log.message.timestamp.type",),
    ),
    Setting(
        "message.timestamp.before.max.ms", Kind.LONG, "9223372036854775807", Importance.MEDIUM,
        "How far in the past a producer's timestamp may lie.", bounds=Range(0),
        synonyms=("log.message.timestamp.before.max.ms",),
    ),
    Setting(
        "message.timestamp.after.max.ms", Kind.LONG, "3600000", Importance.MEDIUM,
        "How far in the future a producer's timestamp may lie.", bounds=Range(0),
        synonyms=("log.message.timestamp.after.max.ms",),
    ),
    Setting(
        "leader.replication.throttled.replicas", Kind.LIST, "", Importance.MEDIUM,
        "Replicas throttled on the leader's side, as partition:broker, or `*`.", bounds=_THROTTLED,
    ),
    Setting(
        "follower.replication.throttled.replicas", Kind.LIST, "", Importance.MEDIUM,
        "Replicas throttled on the follower's side, as partition:broker, or `*`.", bounds=_THROTTLED,
    ),
    Setting(
        "remote.storage.enable", Kind.BOOLEAN, "false", Importance.MEDIUM,
        "Tiered storage for this topic.", instead=_TIERED,
    ),
    Setting(
        "local.retention.ms", Kind.LONG, "-2", Importance.MEDIUM,
        "Age at which a tiered segment's local copy is deleted; with -2, retention.ms counts.", bounds=Range(-2),
        instead=_TIERED, synonyms=("log.local.retention.ms",),
    ),
    Setting(
        "local.retention.bytes", Kind.LONG, "-2", Importance.MEDIUM,
        "Size beyond which local copies of tiered segments are deleted; with -2, retention.bytes counts.",
        bounds=Range(-2), instead=_TIERED, synonyms=("log.local.retention.bytes",),
    ),
    Setting(
        "remote.log.copy.disable", Kind.BOOLEAN, "false", Importance.MEDIUM,
        "Stop copying the topic's segments to the remote store.", instead=_TIERED,
    ),
    Setting(
        "remote.log.delete.on.disable", Kind.BOOLEAN, "false", Importance.MEDIUM,
        "Delete the remote copy when tiered storage is switched off.", instead=_TIERED,
    ),
    Setting(
        "internal.segment.bytes", Kind.INT, None, Importance.MEDIUM,
        "Segment size without the lower bound, for tests.", internal=True,
    ),
)
