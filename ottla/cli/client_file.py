"""Files of client properties that commands write: readable by their owner alone, because they may have passwords.

Java's clients and tools read such a file, and so does `ottla … --command-config`. Spark takes the same properties, with
`kafka.` in front of each name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ottla.cli.errors import CommandError

SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


def scram_login(mechanism: str, user: str, password: str, *, by_token: bool = False) -> dict[str, str]:
    """The properties of a login by SCRAM. `by_token`: the user is a delegation token's id, the password its HMAC."""
    options = f'username="{_quoted(user)}" password="{_quoted(password)}"' + (" tokenauth=true" if by_token else "")
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": f"{SCRAM_MODULE} required {options};"}


def properties_text(properties: Mapping[str, str]) -> str:
    """The text of a properties file."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in properties.items())


def write_private(path: Path, text: str, *, replace: bool = False) -> None:
    """Writes a file that only its owner may read. An older one is kept, unless it is to be replaced. Raises
    CommandError."""
    try:
        if replace:
            path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise CommandError(f"{path} exists already", "Name another file, or remove this one.") from None
    except OSError as error:
        raise CommandError(f"can't write {path}: {error.strerror}") from error


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _escaped(value: str) -> str:
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return f"\\{text}" if text.startswith(" ") else text
