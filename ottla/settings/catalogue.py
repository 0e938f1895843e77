"""All settings by name, and the nearest known name for an unknown one.

Pure. Names are unique within a scope; the same name may be a broker and a topic setting.
"""

import difflib
from collections.abc import Iterable

from ottla.settings import (
    broker,
    client_metrics,
    group,
    groups,
    log,
    network,
    own,
    quorum,
    retired,
    security,
    tiered,
    topic,
    transactions,
)
from ottla.settings.setting import Setting

BROKER_PAGES: tuple[tuple[str, tuple[Setting, ...]], ...] = (
    ("Ottla's own", own.SETTINGS),
    ("Broker", broker.SETTINGS),
    ("Network", network.SETTINGS),
    ("Log", log.SETTINGS),
    ("Groups", groups.SETTINGS),
    ("Transactions", transactions.SETTINGS),
    ("Security", security.SETTINGS),
    ("Quorum of controllers", quorum.SETTINGS),
    ("Tiered storage", tiered.SETTINGS),
)
"""The tables of broker settings, under the headings of their documentation page."""


def _by_name(settings: Iterable[Setting]) -> dict[str, Setting]:
    table: dict[str, Setting] = {}
    for setting in settings:
        assert setting.name not in table, setting.name
        table[setting.name] = setting
    return table


BROKER = _by_name(setting for _, settings in BROKER_PAGES for setting in settings)
TOPIC = _by_name((*topic.SETTINGS, *own.TOPIC_SETTINGS))
GROUP = _by_name(group.SETTINGS)
CLIENT_METRICS = _by_name(client_metrics.SETTINGS)


def retired_instead(name: str) -> str | None:
    """For a setting that is retired or a plug-in's, the text that says what Ottla does instead; None for others."""
    if name in retired.RETIRED:
        return retired.RETIRED[name]
    for prefix, instead in retired.FAMILIES.items():
        if name.startswith(prefix):
            return instead
    return None


def nearest_name(name: str, table: Iterable[str], likeness: float = 0.6) -> str | None:
    """The known name that is most similar to `name`; None if no name's similarity reaches `likeness` (0 to 1)."""
    matches = difflib.get_close_matches(name, list(table), n=1, cutoff=likeness)
    return matches[0] if matches else None
