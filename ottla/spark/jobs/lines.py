"""Lets a pipeline end with one line on standard error instead of a stack trace."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ottla.protocol.errors import KafkaError
from ottla.spark.java import JavaMissing
from ottla.spark.options import OptionError

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_OURS = "Unreachable|DataLoss|RecordsMissing|TopicGone|OffsetOutOfRange"
_RAISED = re.compile(rf"^(?:[\w.]+\.)?(?:\w*(?:Error|Exception|{_OURS})): (.+)$", re.M)


def one_line_errors(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Errors that a person can put right leave the process with exit code 1 and their message."""

    @functools.wraps(function)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        from pyspark.errors import PySparkException

        try:
            return function(*args, **kwargs)
        except (OptionError, JavaMissing, KafkaError, ConnectionError) as error:
            problem = str(error)
        except PySparkException as error:
            problem = _last_line(str(error))
        print(f"error: {problem}", file=sys.stderr)
        raise SystemExit(1)

    return call


def _last_line(text: str) -> str:
    """What a worker raised, out of the trace that Spark wraps around it."""
    raised = _RAISED.findall(text)
    return str(raised[-1]) if raised else next(iter(text.strip().splitlines()), "Spark failed")
