"""How a command's connections are secured: the client's properties that `--command-config` names.

The file has Kafka's names (`security.protocol`, `ssl.…`), as the file of the same option of Kafka's tools. Properties
that don't concern security are left to those tools.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

from ottla.cli.errors import CommandError, UsageError

_SECURITY = ("security.", "ssl.", "sasl.")


def tls_of(command_config: str | None) -> ssl.SSLContext | None:
    """The context for all connections of a command; None for connections that aren't encrypted. Raises UsageError for
    properties that can't be used, CommandError for a file that can't be read."""
    if command_config is None:
        return None
    from ottla.settings.properties import parse_properties

    path = Path(command_config)
    try:
        properties = parse_properties(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"can't read {path}: {error.strerror}", "See --command-config.") from error
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error
    return _tls(path, properties)


def _tls(path: Path, properties: Mapping[str, str]) -> ssl.SSLContext | None:
    from ottla.security.tls_settings import CLIENT_SETTINGS

    unknown = [
        name
        for name in properties
        if name.startswith(_SECURITY) and name != "security.protocol" and name not in CLIENT_SETTINGS
    ]
    if unknown:
        raise UsageError(f"{path}: ottla doesn't have the property {unknown[0]}", "Remove it from the file.")
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol == "PLAINTEXT":
        return None
    if protocol != "SSL":
        raise UsageError(f"{path}: security.protocol is {protocol}: it must be PLAINTEXT or SSL so far")
    from ottla.security.contexts import client_context
    from ottla.security.stores import read_stores
    from ottla.security.tls_settings import InvalidTls, client_tls_settings

    try:
        settings = client_tls_settings(properties)
        return client_context(settings, read_stores(settings))
    except InvalidTls as error:
        raise UsageError(f"{path}: {error}") from error
