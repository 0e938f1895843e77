"""Runs the operator, which reaches Kubernetes only through the proxy of faults, and starts it again when it ends.

As a program it runs in a pod with the token of the pod's service account. Its argument is the seed. The pod's log has
the operator's lines, and lines of JSON: the seed, each fault, each end of the operator's process. SIGUSR1 ends the
faults, not the operator.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.chaos.faults import Chances, Faults
from tests.e2e.chaos.proxy import Proxy

ACCOUNT = Path("/var/run/chaos")  # no client looks here for an account: clients that found one would bypass the proxy
KUBECONFIG = Path("/tmp/kubeconfig")
STARTED_AGAIN_S = 0.5
LAST_LINES = 5
LINE_BYTES_MAX = 1 << 22


@dataclass(frozen=True)
class Upstream:
    """The API server's address, and the token for it."""

    url: str
    token: str
    tls: ssl.SSLContext


class Supervisor:
    """Runs one operator process after the other, and the proxy that all of them use."""

    def __init__(
        self,
        faults: Faults,
        upstream: Upstream,
        kubeconfig: Path,
        tell: Callable[..., None],
        words: tuple[str, ...] = (),
    ) -> None:
        """`words` are the operator's arguments. `kubeconfig` is a file that the supervisor writes; by it the operator
        finds the proxy."""
        self._faults = faults
        self._kubeconfig = kubeconfig
        self._token = upstream.token
        self._tell = tell
        self._words = words
        self._process: asyncio.subprocess.Process | None = None
        self._killed = False
        self._proxy = Proxy(upstream.url, faults, self.kill, self._fault, upstream.tls)

    async def run(self) -> None:
        """Runs until it is cancelled."""
        await self._proxy.listen()
        self._write_kubeconfig()
        try:
            while True:
                await self._one_operator()
                await asyncio.sleep(STARTED_AGAIN_S)
        finally:
            if self._process is not None and self._process.returncode is None:
                self._process.terminate()
                await self._process.wait()
            await self._proxy.close()

    async def _one_operator(self) -> None:
        """Runs one operator process to its end."""
        # If a pod's variables were set, clients would ignore the kubeconfig.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KUBERNETES_")}
        self._killed = False
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ottla.cli.main", "operator", *self._words),
            env={**environment, "KUBECONFIG": str(self._kubeconfig)},
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
        )
        last: deque[str] = deque(maxlen=LAST_LINES)
        assert process.stderr is not None
        while line := await process.stderr.readline():
            last.append(line.decode(errors="replace").rstrip())
            print(last[-1], flush=True)
        code = await process.wait()
        self._tell(ended=code, killed=self._killed, last=list(last))

    def kill(self) -> None:
        """Kills the operator's process; another one is started."""
        if self._process is not None and self._process.returncode is None:
            self._killed = True
            self._process.kill()

    def _fault(self, name: str, method: str, path: str) -> None:
        self._tell(fault=name, method=method, path=path)

    def _write_kubeconfig(self) -> None:
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "chaos", "cluster": {"server": f"http://127.0.0.1:{self._proxy.port}"}}],
            "users": [{"name": "operator", "user": {"token": self._token}}],
            "contexts": [{"name": "chaos", "context": {"cluster": "chaos", "user": "operator"}}],
            "current-context": "chaos",
        }
        self._kubeconfig.write_text(json.dumps(document))


def say(**told: Any) -> None:
    """Prints one line of JSON."""
    print(json.dumps({"at": round(time.time(), 2), **told}), flush=True)


def of_the_pod() -> Upstream:
    """The API server, with the token of the pod's service account."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    host = f"[{host}]" if ":" in host else host
    tls = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    return Upstream(f"https://{host}:{port}", (ACCOUNT / "token").read_text().strip(), tls)


async def supervise(seed: int) -> None:
    """Runs until SIGTERM."""
    faults = Faults(seed, Chances())
    say(seed=seed)

    def calm() -> None:
        faults.calm = True
        say(calm=True, counts=faults.counts)

    loop = asyncio.get_running_loop()
    running = asyncio.ensure_future(Supervisor(faults, of_the_pod(), KUBECONFIG, say).run())
    loop.add_signal_handler(signal.SIGUSR1, calm)
    loop.add_signal_handler(signal.SIGTERM, running.cancel)
    with suppress(asyncio.CancelledError):
        await running


if __name__ == "__main__":
    asyncio.run(supervise(int(sys.argv[1])))
