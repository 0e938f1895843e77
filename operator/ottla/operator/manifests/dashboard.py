"""The Grafana dashboard of operator and clusters, as JSON, from a table of its panels.

Pure. Queries name only metrics of docs/metrics.md, of the operator and of the kubelet; the labels
`ottla_cluster` and `pod` come from the ServiceMonitors of the charts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

OF_CLUSTER = 'namespace="$namespace",ottla_cluster="$cluster"'
"""The label selector of the series of the cluster that the dashboard shows."""

_WIDTH = 24
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Panel:
    """One panel: its queries by their legends. `CLUSTER` in a query stands for the cluster's labels."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    red_from: float | None = None


def _rate(metric: str, by: str = "pod") -> str:
    return f"sum by ({by}) ({_each(metric)})"


def _each(metric: str) -> str:
    return f"rate({metric}{{CLUSTER}}[$__rate_interval])"


def _operator(metric: str) -> str:
    return f"sum by (kind) (rate(ottla_operator_{metric}[$__rate_interval]))"


def _quantile(share: float, request: str) -> str:
    buckets = f'kafka_network_requestmetrics_totaltimems_bucket{{CLUSTER,request="{request}"}}'
    return f"histogram_quantile({share}, sum by (le) (rate({buckets}[$__rate_interval])))"


_SLOWEST = (
    "histogram_quantile(0.99, sum by (kind, le) (rate(ottla_operator_reconcile_seconds_bucket[$__rate_interval])))"
)
_REPLICAS = "kafka_server_replicamanager"
_CONTROLLER = "kafka_controller_kafkacontroller"
_ELECTIONS = "kafka_controller_controllerstats"
_TOPICS = "kafka_server_brokertopicmetrics"

ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Is it well?",
        (
            Panel("Brokers", {"": f"max({_CONTROLLER}_activebrokercount{{CLUSTER}})"}, kind="stat", width=4),
            Panel("Controllers", {"": f"sum({_CONTROLLER}_activecontrollercount{{CLUSTER}})"}, kind="stat", width=4),
            Panel(
                "Partitions without a leader",
                {"": f"sum({_CONTROLLER}_offlinepartitionscount{{CLUSTER}})"},
                kind="stat",
                width=4,
                red_from=1,
            ),
            Panel(
                "Below min.insync.replicas",
                {"": f"sum({_REPLICAS}_underminisrpartitioncount{{CLUSTER}})"},
                kind="stat",
                width=4,
                red_from=1,
            ),
            Panel(
                "Under-replicated",
                {"": f"sum({_REPLICAS}_underreplicatedpartitions{{CLUSTER}})"},
                kind="stat",
                width=4,
                red_from=1,
            ),
            Panel(
                "Moving to other brokers",
                {"": f"sum({_REPLICAS}_reassigningpartitions{{CLUSTER}})"},
                kind="stat",
                width=4,
            ),
        ),
    ),
    (
        "Records",
        (
            Panel("Records in", {"{{pod}}": _rate(f"{_TOPICS}_messagesin_total")}, "cps"),
            Panel("Bytes in", {"{{pod}}": _rate(f"{_TOPICS}_bytesin_total")}, "Bps"),
            Panel("Bytes out", {"{{pod}}": _rate(f"{_TOPICS}_bytesout_total")}, "Bps"),
            Panel(
                "Records in, by topic",
                {"{{topic}}": f"topk(10, {_rate(f'{_TOPICS}_messagesin_total', 'topic')})"},
                "cps",
            ),
            Panel("Size, by topic", {"{{topic}}": "topk(10, sum by (topic) (kafka_log_log_size{CLUSTER}))"}, "bytes"),
            Panel(
                "Requests", {"{{request}}": _rate("kafka_network_requestmetrics_requests_total", "request")}, "reqps"
            ),
        ),
    ),
    (
        "Latency",
        (
            Panel("Produce", {"99 %": _quantile(0.99, "Produce"), "50 %": _quantile(0.5, "Produce")}, "ms"),
            Panel("Fetch, with its wait", {"99 %": _quantile(0.99, "Fetch"), "50 %": _quantile(0.5, "Fetch")}, "ms"),
            Panel("Errors answered", {"{{error}}": _rate("kafka_network_requestmetrics_errors_total", "error")}, "cps"),
        ),
    ),
    (
        "Replication",
        (
            Panel("Furthest behind", {"{{pod}}": "max by (pod) (kafka_server_replicafetchermanager_maxlag{CLUSTER})"}),
            Panel(
                "ISRs shrunk and grown",
                {
                    "shrunk {{pod}}": _rate(f"{_REPLICAS}_isrshrinks_total"),
                    "grown {{pod}}": _rate(f"{_REPLICAS}_isrexpands_total"),
                },
                "cps",
            ),
            Panel("Copied", {"{{pod}}": _rate(f"{_TOPICS}_replicationbytesin_total")}, "Bps"),
            Panel("Leaders", {"{{pod}}": f"sum by (pod) ({_REPLICAS}_leadercount{{CLUSTER}})"}),
            Panel(
                "Elections",
                {
                    "clean": f"sum({_each(f'{_ELECTIONS}_leaderelections_total')})",
                    "unclean": f"sum({_each(f'{_ELECTIONS}_uncleanleaderelections_total')})",
                },
                "cps",
            ),
            Panel(
                "Metadata store silent",
                {"{{pod}}": "max by (pod) (ottla_metadata_store_silence_seconds{CLUSTER})"},
                "s",
            ),
        ),
    ),
    (
        "Brokers",
        (
            Panel("CPU", {"{{pod}}": _rate("process_cpu_seconds_total")}, "none"),
            Panel("Memory", {"{{pod}}": "max by (pod) (process_resident_memory_bytes{CLUSTER})"}, "bytes"),
            Panel(
                "Lag of the event loop (99th percentile)",
                {
                    "{{pod}}": "histogram_quantile(0.99, sum by (le, pod) "
                    "(rate(ottla_event_loop_lag_seconds_bucket{CLUSTER}[$__rate_interval])))"
                },
                "s",
            ),
            Panel(
                "Volumes used",
                {
                    "{{persistentvolumeclaim}}": 'kubelet_volume_stats_used_bytes{namespace="$namespace"'
                    ',persistentvolumeclaim=~"(.*-)?$cluster-.*"} / kubelet_volume_stats_capacity_bytes'
                },
                "percentunit",
            ),
            Panel(
                "Connections",
                {"{{pod}}": "sum by (pod) (kafka_server_socket_server_metrics_connection_count{CLUSTER})"},
            ),
            Panel("Descriptors", {"{{pod}}": "max by (pod) (process_open_fds{CLUSTER})"}),
        ),
    ),
    (
        "Operator",
        (
            Panel("Reconciles", {"{{kind}}": _operator("reconciles_total")}, "cps"),
            Panel("Time of a reconcile (99th percentile)", {"{{kind}}": _SLOWEST}, "s"),
            Panel("Errors", {"{{kind}}": _operator("reconcile_errors_total")}, "cps"),
            Panel("Waiting", {"{{kind}}": "sum by (kind) (ottla_operator_queue_depth)"}, width=12),
            Panel(
                "Writes", {"": "sum(rate(ottla_operator_kubernetes_writes_total[$__rate_interval]))"}, "cps", width=12
            ),
        ),
    ),
)
"""The rows of the dashboard with their panels."""


def dashboard_json() -> str:
    """The dashboard in the JSON that Grafana imports."""
    panels: list[dict[str, Any]] = []
    line = 0
    for title, row in ROWS:
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "gridPos": _place(line, 0, _WIDTH, 1)})
        line += 1
        column, height = 0, 4 if row[0].kind == "stat" else 7
        for panel in row:
            if column + panel.width > _WIDTH:
                line, column = line + height, 0
            panels.append(_panel(panel, len(panels) + 1, _place(line, column, panel.width, height)))
            column += panel.width
        line += height
    dashboard = {
        "uid": "ottla",
        "title": "Ottla",
        "tags": ["ottla", "kafka"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [_datasource(), _variable("namespace", ""), _variable("cluster", 'namespace="$namespace"')]
        },
        "panels": panels,
    }
    return json.dumps(dashboard, indent=2, ensure_ascii=False) + "\n"


def _place(line: int, column: int, width: int, height: int) -> dict[str, int]:
    return {"x": column, "y": line, "w": width, "h": height}


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.red_from is not None:
        steps.append({"color": "red", "value": panel.red_from})
    targets = [
        {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
        for index, (legend, query) in enumerate(queries(panel).items())
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
        "targets": targets,
    }


def queries(panel: Panel) -> dict[str, str]:
    """The panel's queries: legend → PromQL, with the cluster's labels."""
    return {legend: query.replace("CLUSTER", OF_CLUSTER) for legend, query in panel.queries.items()}


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(name: str, within: str) -> dict[str, Any]:
    label = "ottla_cluster" if name == "cluster" else name
    query = f"label_values(ottla_broker_info{{{within}}}, {label})"
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
    }
