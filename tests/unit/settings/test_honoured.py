"""Every setting that the tables call honoured is read by some code, and no setting without effect is read."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ottla.settings.catalogue import BROKER, TOPIC

ROOT = Path(__file__).parents[3]
READERS = (
    "broker/ottla/broker",
    "controller",
    "operator",
    "ottla/metadata",
    "ottla/security",
    "ottla/net",
    "ottla/security",
    "ottla/cli",
    "ottla/settings/config.py",
    "ottla/settings/listeners.py",
    "ottla/settings/topic_config.py",
)


@cache
def _readers(*but: str) -> str:
    """The source text of all code that may read settings, without the files named in `but`."""
    paths = [path for reader in READERS for path in ([ROOT / reader, *(ROOT / reader).rglob("*.py")]) if path.is_file()]
    return "\n".join(path.read_text() for path in paths if path.name not in but)


def test_honoured_settings_are_read() -> None:
    through_topics = {synonym for setting in TOPIC.values() if not setting.instead for synonym in setting.synonyms}
    unread = [
        name
        for name, setting in {**BROKER, **TOPIC}.items()
        if not setting.instead and f'"{name}"' not in _readers() and name not in through_topics
    ]
    assert not unread, "no code reads these settings: give each an `instead` in the table"


def test_settings_without_effect_are_not_read() -> None:
    # config.py may name a setting without effect, to ignore it.
    read = [name for name, setting in BROKER.items() if setting.instead and f'"{name}"' in _readers("config.py")]
    assert not read, "code reads these settings: take their `instead` out of the table"
