"""How far a query's position is behind the ends of its topics. Without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ottla.spark.options import kafka_options, read_options
from ottla.spark.planning import NOWHERE, assigned, ends, open_client
from ottla.spark.positions import from_json


def lag(positions: tuple[Any, ...], kafka: Mapping[str, str]) -> int | None:
    """The number of offsets between the positions of a query's sources and the ends of their topics; None if no source
    is a topic. Raises OptionError if a topic is gone, and ConnectionError if no broker answers."""
    behind = None
    for position in positions:
        try:
            known = from_json(position)
        except (ValueError, AttributeError, TypeError):
            continue  # the position of files
        topics = ",".join(sorted({each.topic for each in known.offsets}))
        if not topics:
            continue
        options = read_options({"subscribe": topics, **kafka_options(kafka)}, streaming=False)
        with open_client(options.properties) as client:
            partitions, _ = assigned(client, options.subscription, NOWHERE)
            latest = ends(client, partitions, known.offsets, options)
        left = sum(max(end - known.offsets.get(each, 0), 0) for each, end in latest.items())
        behind = (behind or 0) + left
    return behind
