"""Command-line options that several pipelines have."""

from __future__ import annotations

from typing import Annotated

import typer

Bootstrap = Annotated[str, typer.Option(help="A broker's host:port, or several with commas.")]
Topic = Annotated[str, typer.Option(help="The topic to read.")]
Into = Annotated[str, typer.Option(help="The topic to write to; it must exist.")]
Checkpoint = Annotated[str, typer.Option(help="Directory that remembers how far the pipeline got.")]
Every = Annotated[
    str, typer.Option(help="How often to run, such as '10 seconds'; without it the present records are processed once.")
]
Limit = Annotated[int, typer.Option(help="Most records of a micro-batch; 0 for no limit.", min=0)]
