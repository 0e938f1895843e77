"""`ottla metadata backup|restore|go-without`: write the metadata store to a file, and restore it from the file.

`ottla.metadata.backup` explains a restore, and why it loses no record that a replica still has.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.errors import CommandError, NotFound, unreadable
from ottla.cli.metadata import ConfigFileOption, SetOption, StoreOption, opened, run
from ottla.cli.options import output_command
from ottla.cli.output import Output

if TYPE_CHECKING:
    from ottla.metadata.backup import Backup

GoneOption = Annotated[
    list[int] | None,
    typer.Option("--gone", metavar="BROKER", help="A broker that will not come back; may be repeated."),
]


@output_command
def backup(
    output: Output,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if there is one.")] = False,
    store: StoreOption = None,
    config: ConfigFileOption = None,
    settings: SetOption = None,
) -> None:
    """Write all of the metadata store to a file, at one revision. Brokers may run meanwhile."""

    async def write() -> None:
        from ottla.metadata.backup import NotABackup, lines_of
        from ottla.metadata.model.value import UnsupportedFormat

        if file.exists() and not overwrite:
            raise CommandError(f"{file} exists", "Take another name, or say --overwrite.")
        async with opened(store, config, settings) as source:
            snapshot = await source.read()
        try:
            lines = list(lines_of(snapshot))
        except (NotABackup, UnsupportedFormat) as error:
            raise CommandError(f"there is nothing to back up: {error}") from error
        _write(file, "".join(lines))
        count = len(lines) - 2
        output.done(
            f"{file}: {count} keys at revision {snapshot.revision}.",
            {"file": str(file), "keys": count, "revision": snapshot.revision},
        )

    run(write())


@output_command
def restore(
    output: Output,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `ottla metadata backup` wrote.")],
    replace: Annotated[bool, typer.Option("--replace", help="Drop the store's present content.")] = False,
    gone: GoneOption = None,
    store: StoreOption = None,
    config: ConfigFileOption = None,
    settings: SetOption = None,
) -> None:
    """Fill the metadata store from a backup. All brokers of the cluster must be stopped.

    The backup may be old. So a partition gets a leader only when all brokers that the backup knows have started and
    reported the ends of their logs; the replica with the longest log leads. Name brokers that will not come back with
    --gone.
    """

    async def read() -> None:
        from ottla.metadata import backup as backups
        from ottla.metadata.store import UnknownOutcome

        whole = _read(file)
        async with opened(store, config, settings, create=True) as target:
            try:
                cluster = await backups.restore(target, whole, replace_all=replace, gone=gone or ())
            except backups.RestoreRefused as error:
                remedy = "--replace drops its content." if isinstance(error, backups.StoreNotEmpty) else ""
                raise CommandError(str(error), remedy) from error
            except UnknownOutcome as error:
                raise CommandError(f"the metadata store didn't answer: {error}", "Run the restore again.") from error
        awaited = ", ".join(map(str, cluster.awaited)) or "none"
        output.done(
            f"Cluster {cluster.id}, generation {cluster.generation}, as of revision {whole.revision} of the backup."
            f" Now start its brokers; partitions get leaders when all of these brokers have reported: {awaited}.",
            {
                "cluster_id": cluster.id,
                "generation": cluster.generation,
                "keys": len(whole.entries),
                "backup_revision": whole.revision,
                "awaited": list(cluster.awaited),
            },
        )

    run(read())


@output_command
def go_without(
    output: Output,
    brokers: Annotated[list[int], typer.Argument(metavar="BROKER…", help="Brokers that will not come back.")],
    store: StoreOption = None,
    config: ConfigFileOption = None,
    settings: SetOption = None,
) -> None:
    """After a restore: wait no longer for brokers that will not come back. Records that only those had are lost."""

    async def write() -> None:
        from dataclasses import replace

        from ottla.metadata import keys
        from ottla.metadata.model.cluster import Cluster
        from ottla.metadata.store import Committed, Guard, Put

        async with opened(store, config, settings) as target:
            found = [entry for entry in (await target.read(keys.cluster.key)).entries if entry.key == keys.cluster.key]
            if not found:
                raise NotFound("the metadata store is empty", "`ottla metadata restore` fills it from a backup.")
            cluster = Cluster.decode(found[0])
            unknown = set(brokers) - set(cluster.awaited)
            if unknown:
                awaited = ", ".join(map(str, cluster.awaited)) or "none"
                raise NotFound(
                    f"the restored cluster doesn't wait for broker {min(unknown)}", f"It waits for brokers: {awaited}."
                )
            left = tuple(broker for broker in cluster.awaited if broker not in brokers)
            put = Put(keys.cluster.key, replace(cluster, awaited=left).encode())
            if not isinstance(await target.transact([Guard(keys.cluster.key, cluster.revision)], [put]), Committed):
                raise CommandError("another process changed the cluster's entry meanwhile", "Run the command again.")
        shown = ", ".join(map(str, left)) or "none"
        output.done(f"The restored cluster still waits for brokers: {shown}.", {"awaited": list(left)})

    run(write())


def _read(file: Path) -> Backup:
    from ottla.metadata.backup import NotABackup, read_backup
    from ottla.metadata.model.value import UnsupportedFormat

    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise unreadable(file, error) from error
    except UnicodeDecodeError as error:
        raise CommandError(f"can't read {file}: it isn't text") from error
    try:
        return read_backup(text.splitlines(keepends=True))
    except (NotABackup, UnsupportedFormat) as error:
        raise CommandError(f"{file}: {error}") from error


def _write(file: Path, text: str) -> None:
    """Writes and syncs the file under its final name, or leaves no trace of it."""
    partial = file.with_name(file.name + ".partial")
    try:
        with partial.open("w", encoding="utf-8") as target:
            target.write(text)
            target.flush()
            os.fsync(target.fileno())
        partial.replace(file)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise CommandError(f"can't write {file}: {(error.strerror or str(error)).lower()}") from error
