"""`ottla log dump` and `ottla log verify`: show the content of a log's files, and their faults. Both only read."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from ottla.cli.errors import CommandError, UsageError, unreadable
from ottla.cli.help import App
from ottla.cli.options import output_command
from ottla.cli.output import Output, cell
from ottla.cli.records import content_to_json
from ottla.wording import counted

app = App(no_args_is_help=True, help="Look into the files of a log.")

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="A .log, .index, .timeindex, .txnindex, .snapshot or checkpoint file.")
]


@app.command()
@output_command
def dump(
    output: Output,
    file: FileArgument,
    records: Annotated[bool, typer.Option("--records", "-r", help="Show the records inside the batches.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Show only this number of entries.")] = None,
) -> None:
    """Show the content of a file of a log. With --json, one object a line."""
    from ottla.cli import log_dump as files

    with _readable(file):
        for entry in islice(files.dump(str(file), deep=records), limit):
            if output.as_json:
                output.line(_plain(entry))
                continue
            shown = {name: value for name, value in (_fields(entry) or {}).items() if name != "records"}
            print("  ".join(f"{name}={cell(value)}" for name, value in shown.items()))
            if shown.get("marker") is not None:
                continue  # the line of the batch has everything that is in its record
            for record in getattr(entry, "records", None) or ():
                headers = ",".join(f"{name}:{_text(value)}" for name, value in record.headers)
                print(
                    f"    offset={record.offset}  timestamp={record.timestamp}  "
                    f"key={_text(record.key)}  value={_text(record.value)}"
                    + (f"  headers={headers}" if headers else "")
                )


@app.command()
@output_command
def verify(
    output: Output,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="FILE|DIR…", help=".log files, partitions' directories, or whole log directories."),
    ],
) -> None:
    """Find batches that stop every consumer, and other faults of logs. Exit code 1 means that there is a fault."""
    from ottla.cli.log_verification import verify as look

    faults: list[dict[str, Any]] = []
    for path in paths:
        with _readable(path):
            faults += [_plain(fault) for fault in look(str(path))]
    columns = {
        "topic": "TOPIC",
        "partition": "PARTITION",
        "offset": "OFFSET",
        "path": "FILE",
        "position": "POSITION",
        "message": "WHAT IS WRONG",
    }
    output.rows(faults, columns)
    names = ", ".join(map(str, paths))
    if faults:
        for line in (*_repairs(faults), *_ways_past(faults)):
            output.title(line)
        raise CommandError(f"{counted(len(faults), 'fault')} in {names}")
    if not output.as_json:
        print(f"{names} {'is' if len(paths) == 1 else 'are'} in order.")


def _repairs(faults: list[dict[str, Any]]) -> list[str]:
    """A line for each repair of an index, and an empty line before them."""
    repairs = dict.fromkeys(fault["repair"] for fault in faults if fault["repair"])
    return ["", *repairs] if repairs else []


def _ways_past(faults: list[dict[str, Any]]) -> Iterator[str]:
    """Lines for each series of unreadable batches: the offset behind it, and the commands that move consumers there."""
    stretches: list[dict[str, Any]] = []
    for fault in faults:
        if fault["next_offset"] < 0:
            continue  # an index, which a broker makes anew, or the end of a file, which recovery cuts off
        last = stretches[-1] if stretches else None
        same = last is not None and all(last[name] == fault[name] for name in ("topic", "partition"))
        if last is not None and same and last["next_offset"] == fault["offset"]:
            last["next_offset"] = fault["next_offset"]
        else:
            stretches.append(dict(fault))
    if not stretches:
        return
    yield ""
    yield "If another replica has no faults (verify it, too), move this one off its broker and back (`ottla reassign`)."
    yield "Otherwise let consumers skip the damaged records:"
    for stretch in stretches:
        where = f"{stretch['topic'] or 'TOPIC'}:{max(stretch['partition'], 0) if stretch['topic'] else 'PARTITION'}"
        go_on = stretch["next_offset"]
        yield f"  {where}, offsets {stretch['offset']} to {go_on - 1}: continue at {go_on}"
        yield f"    ottla groups reset-offsets GROUP --topic {where} --to-offset {go_on} --execute   (one group)"
        yield f"    ottla delete-records {where} --before {go_on}   (all consumers; deletes all earlier records)"


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    from ottla.cli.log_dump import UnknownFile
    from ottla.protocol.errors import KafkaError

    if not file.exists():
        gone = FileNotFoundError()
        raise unreadable(file, gone, "Logs are in the broker's log directories; `ottla log-dirs` lists them.")
    try:
        yield
    except UnknownFile as error:
        raise UsageError(str(error), "Name a segment's file, for instance 00000000000000000000.log.") from error
    except IsADirectoryError as error:
        raise UsageError(f"{file} is a directory", "Name a file in it.") from error
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unreadable(file, error) from error
    except ValueError as error:
        raise CommandError(f"{file}: {error}", "The file isn't what its name says.") from error
    except KafkaError as error:
        raise CommandError(f"{file}: {error.message}", f"`ottla log verify {file}` says where the fault is.") from error


def _plain(value: Any) -> Any:
    """A dumped value as JSON. A record's key, value and headers are written as by `ottla consume --json`."""
    from ottla.protocol.batches import Record

    if isinstance(value, Record):
        return {"offset": value.offset, "timestamp": value.timestamp, **content_to_json(value)}
    if (found := _fields(value)) is not None:
        return {name: _plain(item) for name, item in found.items() if name != "records" or item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode("ascii")}
    return value


def _fields(value: Any) -> dict[str, Any] | None:
    """The fields of a dataclass or a named tuple, by name; None for any other value."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    named: dict[str, Any] | None = value._asdict() if hasattr(value, "_asdict") else None
    return named


def _text(value: bytes | None) -> str:
    return "null" if value is None else bytes(value).decode("utf-8", "backslashreplace")
