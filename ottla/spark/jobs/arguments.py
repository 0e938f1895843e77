"""Command-line options that several pipelines have."""

from __future__ import annotations

from typing import Annotated

import typer

Bootstrap = Annotated[str, typer.Option(help="A broker's host:port, or several separated by commas.")]
Topic = Annotated[str, typer.Option(help="The topic to read.")]
Into = Annotated[str, typer.Option(help="The topic to write to; it must exist.")]
Checkpoint = Annotated[str, typer.Option(help="Directory in which Spark keeps the position of the pipeline.")]
Every = Annotated[
    str,
    typer.Option(help="Interval of the runs, such as '10 seconds'; without it, one run reads the present records."),
]
Limit = Annotated[int, typer.Option(help="Greatest number of records in a micro-batch; 0 for no limit.", min=0)]
