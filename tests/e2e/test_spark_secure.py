"""A Spark job in client mode, whose executors are pods, reads and writes over SASL_SSL with the options in a User's
Secret. The Secret is mounted into the driver alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.e2e.installed import Operator
from tests.e2e.scene import on_topic, secure_cluster, user, working
from tests.e2e.test_spark import EXAMPLES, ORDERS, completed, executors

JOB = """
import json
from pyspark.sql import functions as f
from ottla.spark.session import spark_session

options = json.load(open("/etc/ottla/user/spark-options.json"))
spark = spark_session("secure")
orders = spark.read.format("ottla").options(**options).option("subscribe", "orders").load()
counts = orders.groupBy("key").count().select("key", f.col("count").cast("string").cast("binary").alias("value"))
counts.write.format("ottla").mode("append").options(**options, topic="orders-counts").save()
"""


@pytest.mark.usefixtures("spark_image")
def test_spark_secure(operator: Operator) -> None:
    with working(operator, "spark-secure", secure_cluster()) as scene:
        scene.kube.apply(*(EXAMPLES / name for name in ("topics.yaml", "rbac.yaml", "pods.yaml")))
        scene.topic_settled("orders")
        scene.topic_settled("orders-counts")
        scene.kube.apply(EXAMPLES / "produce.yaml")
        completed(scene, "produce-orders", 120)
        scene.kube.apply(
            user(
                "spark",
                "scram-sha-512",
                on_topic("orders", "Read", "Describe"),
                on_topic("orders-counts", "Write", "Describe"),
            )
        )
        scene.user_settled("spark")
        script = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "script"}, "data": {"job.py": JOB}}
        scene.kube.apply(script, *secure_job())
        completed(scene, "orders-files")
        assert executors(scene, "secure")
        counted = scene.ask("consume", "orders-counts", "--from-beginning", "--until-end", "--json")
        assert sum(int(json.loads(line)["value"]) for line in counted.splitlines()) == ORDERS


def secure_job() -> list[dict[str, Any]]:
    """The example in client mode, with the job above in place of its own, and the User's Secret in the driver's pod."""
    documents = list(yaml.safe_load_all((EXAMPLES / "batch-client-mode.yaml").read_text()))
    (job,) = (each for each in documents if each["kind"] == "Job")
    spec = job["spec"]["template"]["spec"]
    (driver,) = spec["containers"]
    driver["args"] = [*driver["args"][: driver["args"].index("/opt/spark/job.py")], "/etc/script/job.py"]
    driver["volumeMounts"] += [
        {"name": "script", "mountPath": "/etc/script"},
        {"name": "user", "mountPath": "/etc/ottla/user", "readOnly": True},
    ]
    spec["volumes"] += [
        {"name": "script", "configMap": {"name": "script"}},
        {"name": "user", "secret": {"secretName": "spark"}},
    ]
    return documents
