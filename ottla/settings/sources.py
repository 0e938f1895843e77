"""Gathers a broker's settings from their sources: a properties file, the environment, the command line.

Pure: the sources are given as texts and mappings. Only names are checked here, values are checked elsewhere. The
command line overrides the environment, and the environment overrides the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from ottla.settings.catalogue import BROKER, nearest_name, retired_instead
from ottla.settings.properties import parse_properties
from ottla.settings.setting import Setting

ENVIRONMENT_PREFIX = "OTTLA_"
_LISTENER_PREFIX = re.compile(r"listener\.name\.([^.]+)\.(.+)")
# Parts of misspelt names behind which a secret may stand.
_SECRET_LIKE = re.compile(r"pass?wo?r|secret|jaas|key|certificate|truststore", re.IGNORECASE)
# Kubernetes sets variables with the address of a Service named "ottla" (or "ottla-…") in all of its namespace's pods.
_SERVICE_VARIABLE = re.compile(r"(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_.*)?)")


class Given(NamedTuple):
    """The content of the sources: values of known settings by name, sentences on problems, and warnings."""

    values: dict[str, str]
    problems: list[str]
    warnings: list[str]


def environment_name(name: str) -> str:
    """A setting's environment variable: OTTLA_LOG_DIRS for log.dirs, and OTTLA_LOG_LEVEL for ottla.log.level."""
    return ENVIRONMENT_PREFIX + re.sub(r"[^A-Za-z0-9]", "_", name.removeprefix("ottla.")).upper()


_BY_ENVIRONMENT_NAME = {environment_name(name): name for name in BROKER}


def known_setting(name: str) -> Setting | None:
    """The broker setting of that name, which may have a listener's prefix; None for an unknown name."""
    if name in BROKER:
        return BROKER[name]
    match = _LISTENER_PREFIX.fullmatch(name)
    suffix = match[2] if match else ""
    while suffix and suffix not in BROKER:
        # listener.name.client.scram-sha-256.sasl.jaas.config: a SASL mechanism may come before the setting.
        suffix = suffix.partition(".")[2]
    return BROKER.get(suffix)


def is_secret(name: str) -> bool:
    """Whether the value of a broker's setting must not be shown: also that of an unknown one, if its name looks so."""
    setting = known_setting(name)
    return bool(_SECRET_LIKE.search(name)) if setting is None else setting.sensitive


def gather(properties: str, overrides: Mapping[str, str], environment: Mapping[str, str]) -> Given:
    """The settings from all three sources."""
    given = Given({}, [], [])
    try:
        _take(given, parse_properties(properties), "")
    except ValueError as error:
        given.problems.append(f"the properties file, {error}")
    _take(given, _from_environment(given, environment), " (from the environment)")
    _take(given, overrides, " (from --set)")
    return given


def _take(given: Given, pairs: Mapping[str, str], origin: str) -> None:
    for name, value in pairs.items():
        setting = known_setting(name)
        if setting is not None:
            given.values[name] = value
            if setting.instead:
                given.warnings.append(f"{name} has no effect{origin}: {setting.instead}")
            continue
        instead = retired_instead(name)
        if instead is not None:
            given.warnings.append(f"{name} has no effect{origin}: {instead}")
        else:
            shown = "(hidden)" if _SECRET_LIKE.search(name) else value
            given.problems.append(f"{name}={shown}{origin}: there is no such setting{_did_you_mean(name)}")


def _from_environment(given: Given, environment: Mapping[str, str]) -> dict[str, str]:
    """The settings in OTTLA_… variables.

    Other parts of Ottla have variables, too (OTTLA_BOOTSTRAP). So an unknown variable is a problem only if its name is
    very similar to a setting's.
    """
    found: dict[str, str] = {}
    for variable, value in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        if variable in _BY_ENVIRONMENT_NAME:
            found[_BY_ENVIRONMENT_NAME[variable]] = value
            continue
        rest = variable.removeprefix(ENVIRONMENT_PREFIX)
        name = rest.lower().replace("_", ".")
        if _SERVICE_VARIABLE.fullmatch(rest) or value.startswith("tcp://"):
            continue
        if retired_instead(name) is not None:
            found[name] = value
        else:
            nearest = nearest_name(variable, _BY_ENVIRONMENT_NAME, 0.85)
            if nearest is not None:
                shown = "(hidden)" if _SECRET_LIKE.search(name) else value
                given.problems.append(f"{variable}={shown}: there is no such setting; the nearest is {nearest}")
    return found


def _did_you_mean(name: str) -> str:
    nearest = nearest_name(name, BROKER)
    return f"; the nearest is {nearest}" if nearest is not None else ""
