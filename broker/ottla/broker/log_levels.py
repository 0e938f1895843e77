"""The levels of this process's loggers, under Kafka's names, as resources of type BROKER_LOGGER describe and alter
them.

A change lasts until the process ends, as in Kafka.
"""

from __future__ import annotations

import logging

from ottla.broker.authorizer import AUDIT_LOGGER
from ottla.protocol.errors import ErrorCode, KafkaError

ROOT = "root"
LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
"""Kafka's name of a level → Python's level. TRACE means DEBUG, because no message has a lower level."""


def log_levels() -> dict[str, str]:
    """The effective levels of Ottla's loggers, of the audit log's and of the root logger, by the logger's name."""
    known = logging.root.manager.loggerDict
    names = sorted(name for name in known if name == AUDIT_LOGGER or name.partition(".")[0] == "ottla")
    return {name: _level_name(_logger(name)) for name in [ROOT, *names]}


def check_log_level(name: str, level: str | None) -> None:
    """Raises KafkaError unless a logger of that name exists and can take the level; for `level`, None means the level
    of the parent logger."""
    if name not in log_levels():
        raise KafkaError(ErrorCode.invalid_config, f"Logger {name} does not exist!")
    if level is None:
        if name == ROOT:
            raise KafkaError(ErrorCode.invalid_request, "Removing the log level of the root logger is not allowed")
    elif level.upper() not in LEVELS:
        known = ", ".join(sorted(LEVELS))
        message = f"Cannot set the log level of {name} to {level} as it is not a supported log level. "
        raise KafkaError(ErrorCode.invalid_config, f"{message}Valid log levels are {known}")


def set_log_level(name: str, level: str | None) -> None:
    """Sets a logger's level, which `check_log_level` has accepted; None makes the logger take the level of its parent
    logger."""
    _logger(name).setLevel(logging.NOTSET if level is None else LEVELS[level.upper()])


def _logger(name: str) -> logging.Logger:
    return logging.getLogger() if name == ROOT else logging.getLogger(name)


def _level_name(logger: logging.Logger) -> str:
    level = logger.getEffectiveLevel()
    return next((name for name, number in LEVELS.items() if name != "TRACE" and number >= level), "FATAL")
