"""`ottla metadata`: look into the metadata store, key by key, as zkCli did for ZooKeeper.

The commands here only read; backup and restore are in `metadata_backup.py`. `--store` or a broker's settings name the
store; by default it is the store of `ottla dev`. The store can be read while brokers run on it and after they have
stopped. For etcd, a broker's settings have the prefix and the credentials.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Coroutine
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.errors import CommandError, NotFound, UsageError, nearest
from ottla.cli.help import App
from ottla.cli.options import output_command
from ottla.cli.output import Output, reader_gone

if TYPE_CHECKING:
    from ottla.metadata.store import Entry, Store

app = App(no_args_is_help=True, help="Look into the metadata store.")

_SECRET_FIELDS = ("salt", "stored_key", "server_key", "scram", "secret")
_HIDDEN = "(hidden)"

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="STORE",
        envvar="OTTLA_METADATA_STORE",
        help="[embedded:]PATH or etcd:HOST:PORT,…; by default that of --config, or of `ottla dev`.",
    ),
]
ConfigFileOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="The server.properties of a broker that uses the store."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="NAME=VALUE", help="A broker's setting, as ottla.metadata.etcd.prefix; may be repeated."
    ),
]
PrefixArgument = Annotated[str, typer.Argument(metavar="[PREFIX]", help="Only keys with this prefix, such as topics/.")]


@app.command("ls")
@output_command
def list_keys(
    output: Output,
    prefix: PrefixArgument = "",
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Show all keys, not one level.")] = False,
    store: StoreOption = None,
    config: ConfigFileOption = None,
    settings: SetOption = None,
) -> None:
    """List keys: one level of them, or all."""

    async def look() -> None:
        async with opened(store, config, settings) as source:
            snapshot = await source.read(prefix)
        if recursive:
            rows = [
                {
                    "key": entry.key,
                    "mod_revision": entry.mod_revision,
                    "create_revision": entry.create_revision,
                    "lease": entry.lease or None,
                    "size_bytes": len(entry.value),
                }
                for entry in snapshot.entries
            ]
            columns = {"key": "KEY", "mod_revision": "REVISION", "lease": "LEASE", "size_bytes": "BYTES"}
        else:
            rows = _one_level([entry.key for entry in snapshot.entries], prefix)
            columns = {"key": "KEY", "keys": "KEYS"}
        output.rows(rows, columns, empty=f"No key begins with '{prefix}'." if prefix else "The store is empty.")

    run(look())


def _one_level(found: list[str], prefix: str) -> list[dict[str, Any]]:
    """The keys' paths, up to the next slash behind the prefix, each with the number of keys that begin with it."""
    counts: dict[str, int] = {}
    for key in found:
        step, slash, _ = key[len(prefix) :].partition("/")
        name = prefix + step + slash
        counts[name] = counts.get(name, 0) + 1
    return [{"key": name, "keys": count} for name, count in counts.items()]


@app.command()
@output_command
def get(
    output: Output,
    key: Annotated[str, typer.Argument(help="The whole key.")],
    store: StoreOption = None,
    config: ConfigFileOption = None,
    settings: SetOption = None,
) -> None:
    """Show one key's value with its revisions."""

    async def look() -> None:
        async with opened(store, config, settings) as source:
            snapshot = await source.read(key)
            entry = next((entry for entry in snapshot.entries if entry.key == key), None)
            if entry is None:
                known = [entry.key for entry in (await source.read()).entries]
                guess = nearest(key, known).strip()
                raise NotFound(f"there is no key '{key}'", f"{guess} `ottla metadata ls -r` lists all keys.".strip())
        described = _described(entry)
        if output.as_json:
            output.document(described)
            return
        lease = f"   lease {entry.lease}" if entry.lease else ""
        output.title(f"{entry.key}   revision {entry.mod_revision}   created in {entry.create_revision}{lease}")
        value = described.get("value", described.get("value_hex"))
        print(value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False))

    run(look())


@app.command()
@output_command
def watch(
    output: Output,
    prefix: PrefixArgument = "",
    after: Annotated[
        int | None,
        typer.Option(
            "--after",
            min=0,
            metavar="REVISION",
            help="Begin with the changes after this revision; by default with the next change.",
        ),
    ] = None,
    store: StoreOption = None,
    config: ConfigFileOption = None,
    settings: SetOption = None,
) -> None:
    """Show changes as they come, until Ctrl-C. With --json one object a line."""

    async def look() -> None:
        async with opened(store, config, settings) as source:
            begin = (await source.read(prefix)).revision if after is None else after
            output.note(f"Watching from revision {begin} on; Ctrl-C ends.")
            import asyncio

            changes = asyncio.ensure_future(_print_changes(source, prefix, begin, output))
            watched = asyncio.ensure_future(_until_reader_gone())
            await asyncio.wait([changes, watched], return_when=asyncio.FIRST_COMPLETED)
            for task in (changes, watched):
                task.cancel()
            for outcome in await asyncio.gather(changes, watched, return_exceptions=True):
                if isinstance(outcome, Exception):
                    raise outcome

    run(look())


async def _print_changes(store: Store, prefix: str, begin: int, output: Output) -> None:
    from ottla.metadata.store import Compacted

    try:
        async with aclosing(store.watch(prefix, begin)) as revisions:
            async for revision in revisions:
                for change in revision.changes:
                    _print_change(output, revision.revision, change.key, change.entry)
    except Compacted as error:
        raise CommandError(
            f"the metadata store no longer has the changes after revision {begin}",
            "Give a later revision with --after, or leave out --after.",
        ) from error


async def _until_reader_gone() -> None:
    import asyncio

    gone = reader_gone()
    while True:
        await asyncio.sleep(0.25)
        if gone():
            raise BrokenPipeError


def _print_change(output: Output, revision: int, key: str, entry: Entry | None) -> None:
    described = _described(entry) if entry is not None else {}
    value: dict[str, Any] = {name: described[name] for name in ("value", "value_hex") if name in described}
    if output.as_json:
        output.line({"revision": revision, "key": key, "deleted": entry is None, **value})
        return
    shown = "(deleted)" if entry is None else json.dumps(next(iter(value.values())), ensure_ascii=False)
    print(f"{revision}  {key}  {shown}", flush=True)


def _described(entry: Entry) -> dict[str, Any]:
    described: dict[str, Any] = {
        "key": entry.key,
        "mod_revision": entry.mod_revision,
        "create_revision": entry.create_revision,
        "lease": entry.lease or None,
    }
    try:
        described["value"] = _without_secrets(entry.key, json.loads(entry.value))
    except ValueError:
        described["value_hex"] = entry.value.hex()
    return described


def _without_secrets(key: str, value: Any) -> Any:
    """The value without what logins depend on. Passwords can be guessed from a user's keys, and a setting may have a
    password."""
    from ottla.metadata import keys
    from ottla.settings.sources import known_setting

    kind = keys.kind_of(key)
    if kind in (keys.scram, keys.token, keys.login_secret):
        return {name: _HIDDEN if name in _SECRET_FIELDS else field for name, field in value.items()}
    if kind is keys.config and isinstance(value.get("entries"), dict):
        settings = {name: known_setting(name) for name in value["entries"]}
        secret = {name for name, setting in settings.items() if setting is not None and setting.sensitive}
        entries = {name: _HIDDEN if name in secret else text for name, text in value["entries"].items()}
        return value | {"entries": entries}
    return value


@asynccontextmanager
async def opened(
    store: str | None, config: Path | None, settings: list[str] | None, *, create: bool = False
) -> AsyncGenerator[Store, None]:
    """The store that the options name. With `create` a missing file is created."""
    from ottla.metadata.store import StoreUnavailable

    if store is not None and config is not None:
        raise UsageError("--store and --config are both given", "Leave one of them out.")
    if config is not None or (store is not None and store.startswith("etcd:")):
        opening, name = _named_by_settings(store, config, settings, create)
    else:
        opening, name = _file(store, create)
    try:
        found = await opening
    except (StoreUnavailable, OSError) as error:
        raise CommandError(f"can't open the metadata store {name}: {error}") from error
    try:
        yield found
    except StoreUnavailable as error:
        raise CommandError(f"can't reach the metadata store {name}: {error}") from error
    finally:
        await found.close()


def _named_by_settings(
    store: str | None, config: Path | None, settings: list[str] | None, create: bool
) -> tuple[Awaitable[Store], str]:
    from ottla.cli.broker import load_configuration
    from ottla.cli.stores import metadata_path, on_etcd, open_store

    # Every configuration needs a node id; it isn't used here.
    named = [] if store is None else ["node.id=0", f"ottla.metadata.store={store}"]
    configuration = load_configuration(config, [*(settings or []), *named])
    if not on_etcd(configuration):
        return _file(str(metadata_path(configuration)), create)
    return open_store(configuration), configuration.get_str("ottla.metadata.store")


def _file(store: str | None, create: bool) -> tuple[Awaitable[Store], str]:
    from ottla.cli.dev import default_directory
    from ottla.cli.dev_brokers import METADATA_FILE
    from ottla.metadata.embedded import EmbeddedStore

    named = store not in (None, "embedded")
    path = Path(str(store).removeprefix("embedded:")) if named else default_directory() / METADATA_FILE
    # `EmbeddedStore.open` would create a missing file.
    if create:
        path.parent.mkdir(parents=True, exist_ok=True)
    elif not path.is_file():
        raise NotFound(
            f"there is no metadata store at {path}",
            "Name the store with --store PATH, or a broker's file with --config FILE.",
        )
    return EmbeddedStore.open(path), str(path)


def run(work: Coroutine[Any, Any, None]) -> None:
    """Runs a command's work on an event loop."""
    # The import isn't at the top, because most commands don't use asyncio, and it takes a fifth of their start.
    import asyncio

    asyncio.run(work)
