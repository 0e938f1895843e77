"""`ottla users`: the users that log in by SCRAM, and their passwords.

A password comes from a file, from the variable OTTLA_USER_PASSWORD, or from a prompt; it is never an argument, because
other processes of the machine see arguments. It is salted here, so that brokers never get it.

A cluster whose listeners all ask for a login needs a first user before somebody can log in. With `--store` or
`--config`, `ottla users create` writes the credential into the metadata store itself, before any broker runs or while
brokers run. (Kafka: `kafka-storage format --add-scram`.)
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.connection import explained
from ottla.cli.errors import CommandError, NotFound, UsageError, nearest
from ottla.cli.help import App
from ottla.cli.metadata import ConfigFileOption, SetOption, StoreOption, opened, run
from ottla.cli.offsets import confirm
from ottla.cli.options import cluster_command
from ottla.cli.output import Output

if TYPE_CHECKING:
    from ottla.cli.connection import Cluster
    from ottla.security.scram import ScramCredential

app = App(no_args_is_help=True, help="Users that log in by SCRAM, and their passwords.")

PASSWORD_VARIABLE = "OTTLA_USER_PASSWORD"
ITERATIONS_MIN, ITERATIONS_DEFAULT, ITERATIONS_MAX = 4096, 8192, 16384  # Kafka's bounds
SCRAM_SHA_256, SCRAM_SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
_SALT_BYTES = 24
_NUMBERS = {SCRAM_SHA_256: 1, SCRAM_SHA_512: 2}  # Kafka's ScramMechanism

MechanismOption = Annotated[
    list[str] | None,
    typer.Option("--mechanism", "-m", metavar="NAME", help=f"{SCRAM_SHA_512} or {SCRAM_SHA_256}; may be repeated."),
]


@app.command("list")
@cluster_command
def list_users(
    cluster: Cluster,
    output: Output,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]…", help="Only these users.")] = None,
) -> None:
    """Show the users that have passwords for SCRAM, with their mechanisms."""
    known = _described(cluster)
    for name in names or []:
        if name not in known:
            raise NotFound(f"there is no user '{name}'", nearest(name, known).strip())
    rows = [
        {"user": user, "mechanism": mechanism, "iterations": iterations}
        for user, by_mechanism in sorted(known.items())
        if not names or user in names
        for mechanism, iterations in sorted(by_mechanism.items())
    ]
    output.rows(
        rows,
        {"user": "USER", "mechanism": "MECHANISM", "iterations": "ITERATIONS"},
        empty="There are no users. Make one: ottla users create NAME",
    )


@app.command()
@cluster_command
def create(
    cluster: Cluster,
    output: Output,
    name: Annotated[str, typer.Argument(help="The user's name.")],
    mechanism: MechanismOption = None,
    iterations: Annotated[
        int,
        typer.Option("--iterations", min=ITERATIONS_MIN, max=ITERATIONS_MAX, help="How often the password is hashed."),
    ] = ITERATIONS_DEFAULT,
    password_file: Annotated[
        str | None,
        typer.Option(
            "--password-file",
            metavar="FILE",
            help=f"File with the password, or - for standard input; else {PASSWORD_VARIABLE}, else a prompt.",
        ),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Give a user that exists another password.")] = False,
    store: StoreOption = None,
    config: ConfigFileOption = None,
    settings: SetOption = None,
) -> None:
    """Make a user, in the cluster or, with --store or --config, in its metadata store."""
    if not name:
        raise UsageError("a user needs a name")
    wanted = _mechanisms(mechanism) or [SCRAM_SHA_512]
    offline = store is not None or config is not None
    if not offline and not replace:
        _refuse_known(name, _described(cluster).get(name, {}), wanted)
    password = _password(password_file)
    if offline:
        credentials = {each: new_credential(each, password, iterations) for each in wanted}
        run(write_credentials(store, config, settings, name, credentials, replace=replace))
    else:
        from kafka.admin import UserScramCredentialUpsertion

        for each in wanted:  # a request may name a user only once
            upsertion = UserScramCredentialUpsertion(name, _NUMBERS[each], password, iterations=iterations)
            _send(cluster, name, upsertion)
    verb = "has another password" if replace else "is made"
    output.done(f"User {name} {verb}, for {' and '.join(wanted)}.", {"user": name, "mechanisms": wanted})


@app.command()
@cluster_command
def delete(
    cluster: Cluster,
    output: Output,
    name: Annotated[str, typer.Argument(help="The user's name.")],
    mechanism: MechanismOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask for confirmation.")] = False,
) -> None:
    """Delete a user's passwords: the user can't log in by SCRAM any more. Open connections stay open."""
    from kafka.admin import UserScramCredentialDeletion

    known = _described(cluster)
    if name not in known:
        raise NotFound(f"there is no user '{name}'", nearest(name, known).strip())
    wanted = _mechanisms(mechanism) or sorted(known[name])
    if absent := [each for each in wanted if each not in known[name]]:
        raise NotFound(f"user '{name}' has no password for {' and '.join(absent)}")
    confirm(f"Delete the passwords of user {name} for {' and '.join(wanted)}?", yes, output)
    for each in wanted:  # a request may name a user only once
        _send(cluster, name, UserScramCredentialDeletion(name, _NUMBERS[each]))
    output.done(f"User {name} can't log in by {' or '.join(wanted)} any more.", {"user": name, "mechanisms": wanted})


def _described(cluster: Cluster) -> dict[str, dict[str, int]]:
    """The iterations of each user's credentials, by user and mechanism."""
    names = {number: name for name, number in _NUMBERS.items()}
    with explained("the users"):
        answer = cluster.admin.describe_user_scram_credentials()
    return {
        user: {names[int(info["mechanism"])]: int(info["iterations"]) for info in told["credential_infos"]}
        for user, told in answer.items()
    }


def _mechanisms(given: list[str] | None) -> list[str]:
    mechanisms = [each.upper() for each in given or []]
    for each in mechanisms:
        if each not in _NUMBERS:
            raise UsageError(f"'{each}' is no mechanism of SCRAM", f"Say {SCRAM_SHA_512} or {SCRAM_SHA_256}.")
    return list(dict.fromkeys(mechanisms))


def _refuse_known(name: str, known: Any, wanted: list[str]) -> None:
    present = [each for each in wanted if each in known]
    if present:
        raise CommandError(
            f"user '{name}' has a password for {' and '.join(present)} already", "To set another one, say --replace."
        )


def _password(file: str | None) -> str:
    if file == "-":
        password = sys.stdin.readline().rstrip("\r\n")
    elif file is not None:
        try:
            password = Path(file).read_text(encoding="utf-8").rstrip("\r\n")
        except OSError as error:
            raise UsageError(f"can't read {file}: {error.strerror}") from error
    elif (given := os.environ.get(PASSWORD_VARIABLE)) is not None:
        password = given
    elif sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        raise UsageError("there is no password", f"Give --password-file FILE, or {PASSWORD_VARIABLE}.")
    if not password:
        raise UsageError("the password is empty")
    return password


def _send(cluster: Cluster, name: str, change: Any) -> None:
    with explained(f"user '{name}'"):
        problem = cluster.admin.alter_user_scram_credentials([change]).get(name)
    if problem is not None:
        raise CommandError(f"user '{name}': {problem}")


async def write_credentials(
    store: str | None,
    config: Path | None,
    settings: list[str] | None,
    name: str,
    credentials: dict[str, ScramCredential],
    *,
    replace: bool,
    keep: bool = False,
) -> None:
    """Writes a user's credentials, by mechanism, into the metadata store. Credentials that the user has already are
    replaced with `replace`, kept with `keep`, and an error otherwise."""
    from ottla.metadata import keys
    from ottla.metadata.model.users import ScramKeys
    from ottla.metadata.store import Committed, Guard, Put

    async with opened(store, config, settings, create=True) as found:
        entries = {entry.key: entry for entry in (await found.read(keys.scram.prefix)).entries}
        by_key = {keys.scram(name, mechanism): (mechanism, made) for mechanism, made in credentials.items()}
        if keep:
            by_key = {key: made for key, made in by_key.items() if key not in entries}
            if not by_key:
                return
        elif not replace:
            _refuse_known(name, [mechanism for key, (mechanism, _) in by_key.items() if key in entries], [*credentials])
        guards = [Guard(key, entries[key].mod_revision if key in entries else 0) for key in by_key]
        puts = [
            Put(key, ScramKeys(made.salt, made.stored_key, made.server_key, made.iterations).encode())
            for key, (_, made) in by_key.items()
        ]
        if not isinstance(await found.transact(guards, puts), Committed):
            raise CommandError(f"another process has just changed user '{name}'", "Run the command again.")


def new_credential(mechanism: str, password: str, iterations: int) -> ScramCredential:
    """The credential for a password, with a new salt."""
    from ottla.security.scram import credential_of, salted_password

    salt = secrets.token_bytes(_SALT_BYTES)
    return credential_of(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)
