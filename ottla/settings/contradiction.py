"""A sentence on settings that don't fit together, which knows the names of these settings. Pure."""

from __future__ import annotations


class Contradiction(str):
    """The sentence. `settings` are the names of all settings to which it applies: other values of any of them could
    end the contradiction."""

    settings: tuple[str, ...]

    def __new__(cls, sentence: str, *settings: str) -> Contradiction:
        made = super().__new__(cls, sentence)
        made.settings = settings
        return made
