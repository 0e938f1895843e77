"""The log: directories, segments, retention, flushing, compaction.

Pure: one row per setting. Names, types, defaults, bounds and update modes are those of Apache Kafka 4.3.1.
"""

from ottla.settings.setting import Importance, Kind, Members, OneOf, Range, Setting, Update

_PREALLOCATION = "files grow as they are written"
_START_OFFSETS = "log start offsets are written with the recovery points"
_FIRST_CHORES = "each periodic task first runs one interval after the start"
_COMPACTION = "the child process that compacts takes memory as it needs it"

SETTINGS = (
    Setting(
        "log.dir", Kind.LIST, "/tmp/kafka-logs", Importance.HIGH,
        "One log directory, used when log.dirs is not set.", bounds=Members(may_be_empty=False),
    ),
    Setting(
        "log.dirs", Kind.LIST, None, Importance.HIGH,
        "Directories that hold the logs, separated by commas.", bounds=Members(may_be_empty=False),
    ),
    Setting(
        "log.segment.bytes", Kind.INT, "1073741824", Importance.HIGH,
        "Size at which a segment is closed.", bounds=Range(1048576), update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "log.roll.ms", Kind.LONG, None, Importance.HIGH,
        "Age at which a segment is closed.", update=Update.CLUSTER_WIDE, synonyms=("log.roll.ms", "log.roll.hours"),
    ),
    Setting(
        "log.roll.hours", Kind.INT, "168", Importance.HIGH,
        "Age in hours at which a segment is closed, when log.roll.ms is not set.", bounds=Range(1),
        synonyms=("log.roll.ms", "log.roll.hours"),
    ),
    Setting(
        "log.roll.jitter.ms", Kind.LONG, None, Importance.HIGH,
        "Longest random time that is subtracted from the age at which a segment is closed.", update=Update.CLUSTER_WIDE,
        synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ),
    Setting(
        "log.roll.jitter.hours", Kind.INT, "0", Importance.HIGH,
        "Longest random time, in hours, that is subtracted from the age at which a segment is closed, when "
        "log.roll.jitter.ms is not set.", bounds=Range(0),
        synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ),
    Setting(
        "log.retention.ms", Kind.LONG, None, Importance.HIGH,
        "Age at which a segment is deleted; -1 means never.", update=Update.CLUSTER_WIDE,
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ),
    Setting(
        "log.retention.minutes", Kind.INT, None, Importance.HIGH,
        "Age in minutes at which a segment is deleted, when log.retention.ms is not set; -1 means never.",
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ),
    Setting(
        "log.retention.hours", Kind.INT, "168", Importance.HIGH,
        "Age in hours at which a segment is deleted, when neither log.retention.ms nor log.retention.minutes is set; "
        "-1 means never.",
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ),
    Setting(
        "log.retention.bytes", Kind.LONG, "-1", Importance.HIGH,
        "Size of a partition beyond which old segments are deleted; -1 means no limit.", update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "log.retention.check.interval.ms", Kind.LONG, "300000", Importance.MEDIUM,
        "Time between two searches for segments to delete.", bounds=Range(1),
    ),
    Setting(
        "log.initial.task.delay.ms", Kind.LONG, "30000", Importance.LOW,
        "Delay after the start until the first upkeep of the logs.", bounds=Range(0), internal=True,
        instead=_FIRST_CHORES,
    ),
    Setting(
        "log.cleanup.policy", Kind.LIST, "delete", Importance.MEDIUM,
        "What becomes of old segments: delete, compact, or both.", bounds=Members(("compact", "delete")),
        update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "log.index.size.max.bytes", Kind.INT, "10485760", Importance.MEDIUM,
        "Largest size of an index file.", bounds=Range(4), update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "log.index.interval.bytes", Kind.INT, "4096", Importance.MEDIUM,
        "Bytes between two entries of an index.", bounds=Range(0), update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "log.segment.delete.delay.ms", Kind.LONG, "60000", Importance.HIGH,
        "Time between the removal of a segment and the deletion of its files.", bounds=Range(0),
        update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "log.preallocate", Kind.BOOLEAN, "false", Importance.MEDIUM,
        "Allocate the whole file of a new segment on the disk when it is created.", update=Update.CLUSTER_WIDE,
        instead=_PREALLOCATION,
    ),
    Setting(
        "log.flush.interval.messages", Kind.LONG, "9223372036854775807", Importance.HIGH,
        "Records between two fsyncs of a log.", bounds=Range(1), update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "log.flush.interval.ms", Kind.LONG, None, Importance.HIGH,
        "Longest time a record stays without fsync.", update=Update.CLUSTER_WIDE,
        synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    ),
    Setting(
        "log.flush.scheduler.interval.ms", Kind.LONG, "9223372036854775807", Importance.HIGH,
        "Time between two searches for logs to fsync.",
    ),
    Setting(
        "log.flush.offset.checkpoint.interval.ms", Kind.INT, "60000", Importance.HIGH,
        "Time between two writes of the recovery points.", bounds=Range(0),
    ),
    Setting(
        "log.flush.start.offset.checkpoint.interval.ms", Kind.INT, "60000", Importance.HIGH,
        "Time between two writes of the log start offsets.", bounds=Range(0),
        instead=_START_OFFSETS,
    ),
    Setting(
        "replica.high.watermark.checkpoint.interval.ms", Kind.LONG, "5000", Importance.HIGH,
        "Time between two writes of the high watermarks.",
    ),
    Setting(
        "log.message.timestamp.type", Kind.STRING, "CreateTime", Importance.MEDIUM,
        "Whose clock a record's timestamp comes from: producer's or broker's.",
        bounds=OneOf(("CreateTime", "LogAppendTime")), update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "log.message.timestamp.before.max.ms", Kind.LONG, "9223372036854775807", Importance.MEDIUM,
        "How far in the past a producer's timestamp may lie.", bounds=Range(0), update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "log.message.timestamp.after.max.ms", Kind.LONG, "3600000", Importance.MEDIUM,
        "How far in the future a producer's timestamp may lie.", bounds=Range(0), update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "log.dir.failure.timeout.ms", Kind.LONG, "30000", Importance.LOW,
        "How long a broker tries to report a failed directory before it stops.", bounds=Range(1),
        instead="a broker says at once which partitions lost their directory",
    ),
    Setting(
        "num.recovery.threads.per.data.dir", Kind.INT, "2", Importance.HIGH,
        "Logs of one directory that are recovered at the same time.", bounds=Range(1), update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "log.cleaner.enable", Kind.BOOLEAN, "true", Importance.MEDIUM, "Run compaction at all.",
    ),
    Setting(
        "log.cleaner.threads", Kind.INT, "1", Importance.MEDIUM,
        "Threads that compact.", bounds=Range(0), update=Update.CLUSTER_WIDE, instead="one child process compacts",
    ),
    Setting(
        "log.cleaner.io.max.bytes.per.second", Kind.DOUBLE, "1.7976931348623157E308", Importance.MEDIUM,
        "Bytes per second that compaction may read and write.", update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "log.cleaner.dedupe.buffer.size", Kind.LONG, "134217728", Importance.MEDIUM,
        "Memory for the keys of one compaction.", update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "log.cleaner.io.buffer.size", Kind.INT, "524288", Importance.MEDIUM,
        "Memory of the buffers in which compaction reads and writes.", bounds=Range(0), update=Update.CLUSTER_WIDE,
        instead=_COMPACTION,
    ),
    Setting(
        "log.cleaner.io.buffer.load.factor", Kind.DOUBLE, "0.9", Importance.MEDIUM,
        "How full the memory for keys may get.", update=Update.CLUSTER_WIDE,
        instead=_COMPACTION,
    ),
    Setting(
        "log.cleaner.backoff.ms", Kind.LONG, "15000", Importance.MEDIUM,
        "Pause when there is nothing to compact. After a failed compaction a log rests for twice as long, and for up "
        "to 64 times as long if it fails again.", bounds=Range(0), update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "log.cleaner.min.cleanable.ratio", Kind.DOUBLE, "0.5", Importance.MEDIUM,
        "Share of not yet compacted bytes at which a log is compacted.", bounds=Range(0, 1),
        update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "log.cleaner.delete.retention.ms", Kind.LONG, "86400000", Importance.MEDIUM,
        "How long tombstones stay in a compacted log.", bounds=Range(0), update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "log.cleaner.min.compaction.lag.ms", Kind.LONG, "0", Importance.MEDIUM,
        "Age before which a record is never compacted away.", bounds=Range(0), update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "log.cleaner.max.compaction.lag.ms", Kind.LONG, "9223372036854775807", Importance.MEDIUM,
        "Age at which a record is eligible for compaction in any case.", bounds=Range(1), update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "producer.id.expiration.ms", Kind.INT, "86400000", Importance.LOW,
        "Time after which the last state of an idle producer is forgotten.", bounds=Range(1),
        update=Update.CLUSTER_WIDE,
    ),
    Setting(
        "producer.id.expiration.check.interval.ms", Kind.INT, "600000", Importance.LOW,
        "Time between two searches for idle producers to forget.", bounds=Range(1), internal=True,
    ),
)
