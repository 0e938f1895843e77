"""Ends a pipeline that fails with one line on standard error instead of a stack trace."""

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
_OURS = "Unreachable|DataLoss|RecordsMissing|TopicGone|OffsetOutOfRange|NotBegun|FileReplaced|Refused"
_RAISED = re.compile(rf"^(?:[\w.]+\.)?(?:\w*(?:Error|Exception|{_OURS})): (.+)$", re.M)


def one_line_errors(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """A decorator for a pipeline's main function: a known error prints its message, and ends the process with exit code
    1.

    Known errors are invalid options, a missing Java runtime, brokers' errors, unreachable brokers, and failures that
    Spark reports. Other exceptions pass, with their stack trace.
    """

    @functools.wraps(function)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        from pyspark.errors import PySparkException

        try:
            return function(*args, **kwargs)
        except (OptionError, JavaMissing, KafkaError, ConnectionError) as error:
            problem = str(error)
        except PySparkException as error:
            problem = last_line(str(error))
        print(f"error: {problem}", file=sys.stderr)
        raise SystemExit(1)

    return call


def last_line(text: str) -> str:
    """The message of the last exception in the stack traces that make up the text of a Spark error.

    This is the exception that a worker raised. If the text has no exception, its first line is returned.
    """
    raised = _RAISED.findall(text)
    return str(raised[-1]) if raised else next(iter(text.strip().splitlines()), "Spark failed")
