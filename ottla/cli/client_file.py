"""Files of client properties that commands write: readable by their owner alone, because they may have passwords.

Java's clients and tools read such a file, and so does `ottla … --command-config`. Spark takes the same properties, with
`kafka.` in front of each name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
    if replace:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise CommandError(f"can't write {path}: {error.strerror}") from error
    with private_file(path) as write:
        write(text)


@contextmanager
def private_file(path: Path) -> Iterator[Callable[[str], None]]:
    """Makes a new file that only its owner may read, and yields a function that writes its text.

    If the block fails, the file is removed. Raises CommandError: before the block if there is such a file already or
    none can be made."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise CommandError(f"{path} exists already", "Name another file, or remove this one.") from None
    except OSError as error:
        raise CommandError(f"can't write {path}: {error.strerror}") from error

    def write(text: str) -> None:
        try:
            file.write(text)
            file.flush()
        except OSError as error:
            raise CommandError(f"can't write {path}: {error.strerror}") from error

    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            yield write
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _escaped(value: str) -> str:
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return f"\\{text}" if text.startswith(" ") else text
