"""sarama's own functional tests of transactions, against three brokers.

The tests expect a toxiproxy with five proxies at fixed addresses of the loopback interface, and stop brokers with
`docker compose`. This module stands in for both: it forwards these addresses to the brokers, answers the requests that
sarama sends to toxiproxy, and puts a `docker` into the tests' PATH that stops and starts the cluster's brokers.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.peers.ottla_cluster import OttlaCluster
from tests.peers.proxy import Proxies
from tests.peers.tools import ROOT, go_program

TESTS = (
    "TestFuncTxn.*",
    "TestFuncInitProducerId3",
    "TestFuncDescribeTransactions",
    "TestFuncListTransactions",
    "TestFuncDescribeProducers",
)
_PORTS = range(29091, 29096)
_OUTCOME = re.compile(r"^--- (PASS|FAIL|SKIP): (\w+)", re.MULTILINE)
_DOCKER = """#!{python}
import sys, urllib.request
url = "http://{address}/" + "/".join(sys.argv[2:])
urllib.request.urlopen(urllib.request.Request(url, b"", method="POST"), timeout=90).close()
"""


def run(cluster: OttlaCluster, timeout_s: int = 300) -> tuple[dict[str, str], str]:
    """Runs the tests. Returns test → "PASS", "FAIL" or "SKIP", and the whole output."""
    program = go_program(ROOT / "tests/conformance/go", "github.com/IBM/sarama", "sarama.test", tests=True)
    proxies = Proxies()
    try:
        for number, port in enumerate(_PORTS):
            proxies.route(cluster.brokers[number % len(cluster.brokers)].bootstrap, f"127.0.0.1:{port}")
        with ThreadingHTTPServer(("127.0.0.1", 0), _handler(cluster)) as server, tempfile.TemporaryDirectory() as path:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            address = f"127.0.0.1:{server.server_address[1]}"
            docker = Path(path) / "docker"
            docker.write_text(_DOCKER.format(python=sys.executable, address=address))
            docker.chmod(0o755)
            added = {
                "TOXIPROXY_ADDR": f"http://{address}",
                "KAFKA_VERSION": "4.0.0",
                "PATH": f"{path}:{os.environ['PATH']}",
            }
            done = subprocess.run(
                [str(program), "-test.run", f"^({'|'.join(TESTS)})$", "-test.v", f"-test.timeout={timeout_s}s"],
                env=os.environ | added,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
            server.shutdown()
    finally:
        proxies.close()
    output = done.stdout + done.stderr
    return {name: outcome for outcome, name in _OUTCOME.findall(output)}, output


def _handler(cluster: OttlaCluster) -> type[BaseHTTPRequestHandler]:
    orders: dict[str, Callable[[int], None]] = {
        "stop": lambda number: cluster.brokers[number].stop(),
        "start": lambda number: cluster.brokers[number].start_again(),
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """/proxies/NAME: a proxy's description."""
            name = self.path.rpartition("/")[2]
            self._answer(200, {"name": name, "listen": "", "upstream": "", "enabled": True})

        def do_POST(self) -> None:
            """/reset has nothing to reset. /stop/kafka-NUMBER and /start/kafka-NUMBER are the orders to `docker`."""
            _, order, *rest = self.path.split("/")
            if order in orders:
                orders[order](int(rest[0].rpartition("-")[2]))
            self._answer(204 if order == "reset" else 200, {})

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing is logged."""

        def _answer(self, code: int, content: object) -> None:
            body = json.dumps(content).encode() if code != 204 else b""
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
