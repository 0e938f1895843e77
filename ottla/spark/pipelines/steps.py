"""The steps of a pipeline, each from a flow to a flow.

SQL and Python make new rows of the rows that come, and an error of theirs ends the pipeline: Spark can't tell which row
it was. `cast` fails single rows. The other steps can't fail a row.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from .flow import RECORD, Flow, failure, no_failure, shown
from .refusals import SpecError
from .spec import (
    CastStep,
    DedupStep,
    DropStep,
    FilterStep,
    MaskStep,
    PythonStep,
    RenameStep,
    SelectStep,
    SqlStep,
    Step,
)

INPUT = "input"  # the name of the rows that come, in SQL
_STAGE = "TRANSFORMATION"
_CAST = "org.apache.kafka.connect.transforms.Cast"


def stepped(flow: Flow, steps: Iterable[Step]) -> Flow:
    """The flow after the steps. Raises SpecError, whose lines begin with a step's path in the spec, and
    AnalysisException if Spark can't plan a step."""
    for place, step in enumerate(steps):
        flow = _STEPS[type(step)](flow, step, f"steps[{place}]")
    return flow


def _sql(flow: Flow, step: SqlStep, where: str) -> Flow:
    flow.rows.createOrReplaceTempView(INPUT)
    try:
        # A statement that isn't a query can't stand in parentheses; Spark would carry it out at once.
        return flow.through(flow.rows.sparkSession.sql(f"SELECT * FROM (\n{step.sql}\n)"))
    finally:
        flow.rows.sparkSession.catalog.dropTempView(INPUT)


def _filter(flow: Flow, step: FilterStep, where: str) -> Flow:
    return flow.through(flow.rows.where(step.filter))


def _select(flow: Flow, step: SelectStep, where: str) -> Flow:
    kept = [RECORD] if RECORD in flow.rows.columns else []
    return flow.through(flow.rows.selectExpr(*step.select, *kept))


def _drop(flow: Flow, step: DropStep, where: str) -> Flow:
    _have(flow, step.drop, f"{where}.drop")
    return flow.through(flow.rows.drop(*step.drop))


def _rename(flow: Flow, step: RenameStep, where: str) -> Flow:
    _have(flow, step.rename, f"{where}.rename")
    return flow.through(flow.rows.withColumnsRenamed(dict(step.rename)))


def _cast(flow: Flow, step: CastStep, where: str) -> Flow:
    _have(flow, step.cast, f"{where}.cast")
    for name, kind in step.cast.items():
        _is_plain(DataType.fromDDL(kind), name, f"{where}.cast")
        _is_plain(flow.rows.schema[name].dataType, name, f"{where}.cast")
    cast = {name: f.col(f"`{name}`").try_cast(kind) for name, kind in step.cast.items()}
    lost = no_failure()
    for name, kind in step.cast.items():
        before = f.col(f"`{name}`")
        message = f.concat(f.lit(f"{name}: '"), shown(before.cast("string")), f.lit(f"' is no {kind}"))
        lost = f.when(before.isNotNull() & cast[name].isNull(), failure(_STAGE, _CAST, message)).otherwise(lost)
    checked = flow.checked(flow.rows, lost)
    return checked.through(checked.rows.withColumns(cast))


def _is_plain(kind: DataType, name: str, where: str) -> None:
    """Refuses a type with values inside of it. An inner value that doesn't fit would become null, and the row would
    pass."""
    if isinstance(kind, StructType | ArrayType | MapType):
        told = f"'{name}': values inside of {kind.simpleString()} can't be checked one by one"
        raise SpecError([f"{where}: {told}: a step 'sql' can cast them"])


def _mask(flow: Flow, step: MaskStep, where: str) -> Flow:
    _have(flow, step.mask, f"{where}.mask")
    return flow.through(flow.rows.withColumns({name: _masked(f.col(f"`{name}`")) for name in step.mask}))


def _masked(text: Column) -> Column:
    """The text with `x` for each letter and each mark, and `0` for each digit, of any script."""
    return f.regexp_replace(f.regexp_replace(text, r"[\p{L}\p{M}]", "x"), r"\p{N}", "0")


def _dedup(flow: Flow, step: DedupStep, where: str) -> Flow:
    _have(flow, (*step.dedup.keys, step.dedup.by), f"{where}.dedup")
    timed = flow.rows.withWatermark(step.dedup.by, step.dedup.within)
    return flow.through(timed.dropDuplicatesWithinWatermark(list(step.dedup.keys)))


def _python(flow: Flow, step: PythonStep, where: str) -> Flow:
    made = imported(step.python, f"{where}.python")(flow.rows)
    if not isinstance(made, DataFrame):
        raise SpecError([f"{where}.python: {step.python} returned {type(made).__name__}, not a DataFrame"])
    return flow.through(made)


def imported(path: str, where: str) -> Callable[[DataFrame], DataFrame]:
    """The function that an import path names. Raises SpecError."""
    module, _, name = path.partition(":")
    try:
        function = reduce(getattr, name.split("."), importlib.import_module(module))
    except ImportError as error:
        raise SpecError([f"{where}: {module} can't be imported: {error}"]) from error
    except AttributeError:
        raise SpecError([f"{where}: there is no {name} in {module}"]) from None
    if not callable(function):
        raise SpecError([f"{where}: {path} is no function"])
    return function


def _have(flow: Flow, names: Iterable[str], where: str) -> None:
    for name in names:
        if name not in flow.rows.columns:
            hint = ": a step 'sql' can change nested fields" if "." in name else ""
            raise SpecError([f"{where}: there is no column '{name}'; the columns are {', '.join(flow.columns)}{hint}"])


_STEPS: dict[type, Callable[..., Flow]] = {
    SqlStep: _sql,
    FilterStep: _filter,
    SelectStep: _select,
    DropStep: _drop,
    RenameStep: _rename,
    CastStep: _cast,
    MaskStep: _mask,
    DedupStep: _dedup,
    PythonStep: _python,
}
