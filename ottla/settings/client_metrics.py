"""Subscriptions to metrics of clients (KIP-714).

Pure: one row per setting. Names, types, defaults, bounds and update modes are those of Apache Kafka 4.3.1.
"""

from ottla.settings.setting import Importance, Kind, Members, Setting

_TELEMETRY = "clients are not asked for their metrics"

SETTINGS = (
    Setting(
        "metrics", Kind.LIST, "", Importance.MEDIUM,
        "Prefixes of the metrics that clients push; `*` means all.", bounds=Members(), instead=_TELEMETRY,
    ),
    Setting("interval.ms", Kind.INT, "300000", Importance.MEDIUM, "Time between two pushes.", instead=_TELEMETRY),
    Setting(
        "match", Kind.LIST, "", Importance.MEDIUM,
        "Which clients push their metrics, as field=pattern.", bounds=Members(), instead=_TELEMETRY,
    ),
)
