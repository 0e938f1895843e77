"""`ottla pipelines`: pipelines from topics, files and other sources to topics, files and tables, on Spark.

A pipeline is a YAML file (docs/pipelines.md). A file may hold several pipelines, as several YAML documents. Spark is
imported by the commands that need it: `check` and `run`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.errors import CommandError, Failures, NotFound, UsageError, raise_all
from ottla.cli.help import App
from ottla.cli.options import cluster_command, output_command
from ottla.cli.output import Output
from ottla.cli.times import moment_text

if TYPE_CHECKING:
    from ottla.cli.connection import Cluster
    from ottla.spark.pipelines.progress import Progress
    from ottla.spark.pipelines.spec import Pipeline
    from ottla.spark.pipelines.state import QueryState

app = App(no_args_is_help=True, help="Pipelines between topics, files and tables, on Spark.")

FilesArgument = Annotated[list[Path], typer.Argument(metavar="FILE…", help="YAML files with pipelines.")]
EXTRA = "ottla[spark]"
COLUMNS = {"pipeline": "PIPELINE", "sink": "SINK", "batch": "BATCH", "ended": "ENDED", "lag": "LAG", "state": "STATE"}
PIPELINE_COLUMNS = {"pipeline": "PIPELINE", "source": "SOURCE", "sinks": "SINKS", "file": "FILE"}

EXAMPLE = """\
# yaml-language-server: $schema=pipeline.schema.json
# (`ottla pipelines schema > pipeline.schema.json` writes that file, by which editors complete and check this one.)
name: {name}

# Where rows come from: a topic, or files.
source:
  topic: flights
  format: json
  schema: carrier STRING, origin STRING, dep_delay DOUBLE

# What is done to them, one step after the other.
steps:
- filter: dep_delay > 0
- sql: SELECT carrier, origin, dep_delay, _record.timestamp AS at FROM input

# Where they go: each sink is a query of its own, with its own guarantee.
sinks:
- topic: late-flights
  key: carrier

# Records that can't be decoded go to a topic of their own, and the pipeline goes on. `fail` would end it.
errors:
  topic: {name}-errors

trigger: {{every: 1 second}} # or: once
checkpoint: ./checkpoints/{name}
"""


@app.command()
@output_command
def init(
    output: Output,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write, such as flights.yaml.")],
) -> None:
    """Write an example of a pipeline."""
    try:
        with open(file, "x") as out:
            out.write(EXAMPLE.format(name=file.stem.lower().replace("_", "-")))
    except FileExistsError:
        raise UsageError(f"{file} is there already", "Choose another name, or delete the file.") from None
    except OSError as error:
        raise CommandError(f"{file} can't be written: {error.strerror}") from error
    output.done(f"{file} has an example. `ottla pipelines check {file}` checks it.", {"file": str(file)})


@app.command()
@output_command
def schema(output: Output) -> None:
    """Print the JSON Schema of a pipeline, for editors."""
    with _installed():
        from ottla.spark.pipelines.spec import json_schema
    print(json.dumps(json_schema(), indent=2))


@app.command("list")
@output_command
def list_pipelines(output: Output, files: FilesArgument) -> None:
    """Show the pipelines in files."""
    rows = [
        {
            "pipeline": each.name,
            "source": _source_text(each),
            "sinks": ", ".join(name for name, _ in each.named_sinks),
            "file": str(file),
        }
        for file, each in _pipelines(files)
    ]
    output.rows(rows, PIPELINE_COLUMNS, empty="These files have no pipeline.")


@app.command()
@cluster_command
def check(cluster: Cluster, output: Output, files: FilesArgument) -> None:
    """Plan pipelines against the cluster without starting them."""
    pipelines = _pipelines(files)
    with _installed():
        from ottla.spark.pipelines import running
        from ottla.spark.session import spark_session
    with _explained():
        for _, each in pipelines:
            running.check(each, _properties(cluster, each))
        spark = spark_session("ottla-pipelines")
        try:
            planned = {each.name: running.queries(spark, each, _properties(cluster, each)) for _, each in pipelines}
        finally:
            spark.stop()
    rows = [{"pipeline": name, "sink": sink} for name, sinks in planned.items() for sink in sinks]
    output.rows(rows, {"pipeline": "PIPELINE", "sink": "SINK"}, empty="These files have no pipeline.")
    output.note("The pipelines can be run.")


@app.command()
@cluster_command
def run(
    cluster: Cluster,
    output: Output,
    files: FilesArgument,
    once: Annotated[
        bool, typer.Option("--once", help="Process the rows that are there now, and end, whatever the trigger says.")
    ] = False,
    confirm: Annotated[
        list[str] | None,
        typer.Option(
            "--confirm",
            metavar="PIPELINE.SINK=TEXT",
            help="Answer the refusal of a topic's transactions by the text that it names, such as "
            "'flights.out=skip 17'. The option can be given several times.",
        ),
    ] = None,
) -> None:
    """Run pipelines on this machine until Ctrl-C, or until they have processed everything (trigger: once)."""
    pipelines = {each.name: each for _, each in _pipelines(files)}
    if once:
        pipelines = {name: each.model_copy(update={"trigger": "once"}) for name, each in pipelines.items()}
    with _installed():
        from ottla.spark.pipelines import running
        from ottla.spark.session import spark_session
    confirmed = _confirmed(confirm or [], pipelines)
    kafka = {name: _properties(cluster, each) for name, each in pipelines.items()}
    with _explained():
        for name, each in pipelines.items():
            running.check(each, kafka[name])
        output.note("Spark starts …")
        spark = spark_session("ottla-pipelines")
        try:
            running.run(spark, pipelines, kafka, lambda progress: _tell(output, progress), confirmed)
        finally:
            spark.stop()


@app.command()
@cluster_command
def status(cluster: Cluster, output: Output, files: FilesArgument) -> None:
    """Show how far pipelines are, by their checkpoints on this machine."""
    from ottla.spark.pipelines.paths import local_path
    from ottla.spark.pipelines.state import query_state

    rows = []
    for _, each in _pipelines(files):
        for sink, _ in each.named_sinks:
            checkpoint = local_path(each.checkpoint)
            if checkpoint is None:
                raise CommandError(f"{each.name}: the checkpoint {each.checkpoint} isn't on this machine's file system")
            directory = checkpoint / sink
            try:
                state = query_state(directory)
            except (OSError, ValueError) as error:
                raise CommandError(f"the checkpoint {directory} can't be read: {error}") from error
            rows.append(_state_row(cluster, each, sink, state))
    output.rows(rows, COLUMNS, empty="These files have no pipeline.")


def _confirmed(given: list[str], pipelines: dict[str, Pipeline]) -> dict[str, str]:
    from ottla.spark.pipelines import running
    from ottla.spark.pipelines.confirming import confirmations

    try:
        return confirmations(given, [name for each in pipelines.values() for name in running.transactional(each)])
    except ValueError as error:
        raise UsageError(str(error)) from None


def _state_row(cluster: Cluster, pipeline: Pipeline, sink: str, state: QueryState | None) -> dict[str, Any]:
    row: dict[str, Any] = {"pipeline": pipeline.name, "sink": sink, "batch": None, "ended": None, "lag": None}
    if state is None:
        return row | {"state": "never run"}
    row |= {"batch": state.ended if state.ended >= 0 else None, "state": "at rest"}
    if state.begun > state.ended:
        row["state"] = f"batch {state.begun} was begun"
    if state.ended_ms:
        row["ended"] = moment_text(state.ended_ms)
    with _explained():
        from ottla.spark.pipelines.lag import lag

        row["lag"] = lag(state.positions, _properties(cluster, pipeline))
    return row


def _tell(output: Output, progress: Progress) -> None:
    if output.as_json:
        print(json.dumps(progress._asdict()), flush=True)
        return
    behind = "" if progress.lag is None else f", {progress.lag} behind"
    late = f", {progress.too_late} too late" if progress.too_late else ""
    rate = f"{progress.rows_per_s:,.0f} rows/s"
    clock = time.strftime("%H:%M:%S")
    print(
        f"{clock}  {progress.query}  batch {progress.batch}: {progress.rows:,} rows, {rate}{behind}{late}", flush=True
    )


def _source_text(pipeline: Pipeline) -> str:
    key = next(iter(type(pipeline.source).model_fields))
    value = getattr(pipeline.source, key)
    return f"{key} {value if isinstance(value, str) else ', '.join(value)}"


def _pipelines(files: list[Path]) -> list[tuple[Path, Pipeline]]:
    """The pipelines in the files. Raises Failures with a line for each wrong value, and UsageError if two pipelines
    have one name, one checkpoint, or one file to write to."""
    with _installed():
        import yaml

        from ottla.spark.pipelines.ownership import shared
        from ottla.spark.pipelines.paths import resolved
        from ottla.spark.pipelines.refusals import SpecError
        from ottla.spark.pipelines.spec import parse
    found: list[tuple[Path, Pipeline]] = []
    wrong: list[CommandError] = []
    for file in files:
        try:
            documents = [each for each in yaml.safe_load_all(file.read_text()) if each is not None]
        except FileNotFoundError:
            raise NotFound(f"there is no file {file}") from None
        except OSError as error:
            raise CommandError(f"{file} can't be read: {error.strerror}") from error
        except yaml.YAMLError as error:
            raise UsageError(f"{file} is no YAML: {error}") from error
        for document in documents:
            try:
                found.append((file, parse(document, str(file))))
            except SpecError as error:
                wrong += [UsageError(line) for line in error.lines]
    if wrong:
        raise Failures(wrong)
    names = [each.name for _, each in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two pipelines have the name {name}", "Transactions and positions bear this name.")
    raise_all([UsageError(line) for line in shared([each for _, each in found], resolved)])
    return found


def _properties(cluster: Cluster, pipeline: Pipeline) -> dict[str, str]:
    """The client's properties: those of the command's cluster, and over them those of the pipeline."""
    from ottla.settings.properties import parse_properties

    file = cluster.command_config
    own = parse_properties(file.read_text()) if file is not None else {}
    return {**own, "bootstrap.servers": cluster.bootstrap, **pipeline.kafka}


@contextmanager
def _installed() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise CommandError(f"pipelines need the package {error.name}", f"Install {EXTRA}.") from error


@contextmanager
def _explained() -> Iterator[None]:
    """Turns the errors of planning and of running into one line each."""
    from pyspark.errors import PySparkException

    from ottla.protocol.errors import KafkaError
    from ottla.spark.java import JavaMissing
    from ottla.spark.jobs.frames import Stopped
    from ottla.spark.jobs.lines import last_line
    from ottla.spark.options import OptionError
    from ottla.spark.pipelines.confirming import Unconfirmed
    from ottla.spark.pipelines.refusals import SpecError

    try:
        yield
    except SpecError as error:
        raise Failures([UsageError(line) for line in error.lines]) from error
    except (OptionError, JavaMissing, KafkaError, OSError, Stopped, Unconfirmed) as error:
        raise CommandError(str(error)) from error
    except PySparkException as error:
        raise CommandError(last_line(str(error))) from error
