"""The fault-injecting proxy between an operator and its API server: each fault has the effect that its name states."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.e2e.chaos.faults import NOTHING, TOO_LATE_S, Chances, Fault, Faults
from tests.e2e.chaos.proxy import Proxy
from tests.unit.waiting import until

PODS = "/api/v1/namespaces/shop/pods"
POD = f"{PODS}/k-0"
ALWAYS = 1.0
NEVER = Chances(refused=0, lost=0, cut=0, late=0, too_late=0, twice=0, death=0, ends=0)
ASKED = [(method, f"{PODS}/k-{number}") for method in ("GET", "PUT", "PATCH", "DELETE") for number in range(200)]


class Told(Faults):
    """Chooses for each request the fault that the test names."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(0, NEVER)
        self._fault = fault

    def of(self, method: str, path: str, *, watch: bool = False) -> Fault:
        return NOTHING if self.calm else self._fault


class Api:
    """An API server that notes each request. Its watch sends six events, and then stays silent."""

    EVENTS = 6

    def __init__(self) -> None:
        self.done: list[tuple[str, str, bytes, str]] = []
        self.watching = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            return await self._watch(request)
        body = await request.read()
        self.done.append((request.method, request.raw_path, body, request.headers.get("Authorization", "")))
        return web.json_response({"number": len(self.done)}, status=201 if request.method == "POST" else 200)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        self.watching += 1
        try:
            for number in range(self.EVENTS):
                event = {"type": "ADDED", "object": {"metadata": {"resourceVersion": str(number)}}}
                await response.write(json.dumps(event).encode() + b"\n")
            await until(lambda: request.transport is None or request.transport.is_closing(), 60)
        finally:
            self.watching -= 1
        return response


class Through:
    """The tools of a test: a client of the proxy, and notes of the faults."""

    def __init__(self, api: Api, faults: Faults, session: aiohttp.ClientSession) -> None:
        self.api = api
        self.faults = faults
        self.session = session
        self.deaths: list[int] = []  # for each death: the number of requests done before
        self.told: list[str] = []

    async def ask(self, method: str, path: str, **more: Any) -> tuple[int, Any]:
        async with self.session.request(method, path, **more) as answer:
            return answer.status, await answer.json()

    async def watched(self) -> list[Any]:
        """The events of a watch up to its end. Raises the error of a torn watch."""
        async with self.session.get(f"{PODS}?watch=true") as answer:
            return [json.loads(line) async for line in answer.content]


def play(faults: Faults, act: Callable[[Through], Awaitable[None]]) -> Through:
    """Runs `act` with an API server, a proxy and a client."""

    async def run() -> Through:
        api = Api()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", api.handle)
        runner = web.AppRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        upstream = f"http://127.0.0.1:{runner.addresses[0][1]}"
        proxy = Proxy(
            upstream, faults, lambda: through.deaths.append(len(api.done)), lambda name, *_: through.told.append(name)
        )
        await proxy.listen()
        # Each request has a new connection. If the connection ends, aiohttp repeats the request, unless it is a POST.
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{proxy.port}", connector=connector) as session:
            through = Through(api, faults, session)
            try:
                async with asyncio.timeout(60):
                    await act(through)
            finally:
                await proxy.close()
                await runner.cleanup()
        return through

    return asyncio.run(run())


def of_all(faults: Faults, asked: list[tuple[str, str]] = ASKED) -> dict[tuple[str, str], Fault]:
    return {each: faults.of(*each) for each in asked}


def test_the_same_seed_gives_each_request_the_same_fault_whatever_overtakes_it() -> None:
    one = of_all(Faults(7, Chances()))
    assert of_all(Faults(7, Chances()), ASKED[::-1]) == one
    assert of_all(Faults(8, Chances())) != one
    elsewhere = [(method, path.replace("/shop/", "/shop-2/")) for method, path in ASKED]
    assert list(of_all(Faults(7, Chances()), elsewhere).values()) == list(one.values())


def test_a_request_that_is_made_again_has_another_fault() -> None:
    faults = Faults(1, Chances(refused=0.5))
    found = [bool(faults.of("GET", POD).refused) for _ in range(40)]
    assert 0 < sum(found) < 40


def test_each_kind_of_fault_comes_and_is_counted() -> None:
    faults = Faults(3, Chances())
    found = Counter(faults.of(method, path).name for _ in range(10) for method, path in ASKED)
    found += Counter(faults.of("GET", PODS, watch=True).name for _ in range(200))
    del found[""]
    assert found == faults.counts
    assert set(found) == {
        *(f"refused: {status}" for status in (409, 429, 500, 503)),
        *("death before a write", "death after a write", "done twice, first answer", "done twice, second answer"),
        *("done, and 500", "cut before it is done", "cut after it is done", "answered late", "answered too late"),
        *("watch ended: order", "watch ended: torn", "watch ended: gone"),
    }


def test_reads_are_neither_refused_as_conflicts_nor_done_twice_nor_fatal() -> None:
    faults = Faults(5, Chances(refused=0.3, twice=ALWAYS, death=ALWAYS))
    found = [faults.of("GET", path) for _, path in ASKED for _ in range(5)]
    assert {each.refused for each in found} == {0, 500, 503, 429}
    assert not any(each.twice or each.death for each in found)


def test_in_the_calm_nothing_goes_wrong() -> None:
    faults = Faults(5, Chances(refused=ALWAYS))
    faults.calm = True
    assert set(of_all(faults).values()) == {NOTHING}
    assert not faults.counts


def test_chances_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="the chances of late, death"):
        Faults(1, Chances(late=1.5, death=-0.1))


def test_without_a_fault_all_is_handed_on_as_it_is() -> None:
    async def act(through: Through) -> None:
        path = f"{POD}?fieldManager=a%20b&force=true"
        headers = {"Authorization": "Bearer secret"}
        async with through.session.patch(path, data=b'{"a":1}', headers=headers) as answer:
            assert (answer.status, await answer.json()) == (200, {"number": 1})
        assert through.api.done == [("PATCH", path, b'{"a":1}', "Bearer secret")]
        assert await through.ask("POST", PODS, json={}) == (201, {"number": 2})

    assert play(Told(NOTHING), act).told == []


@pytest.mark.parametrize(
    ("status", "method", "reason"),
    [
        (500, "GET", "InternalError"),
        (503, "PATCH", "ServiceUnavailable"),
        (429, "DELETE", "TooManyRequests"),
        (409, "PUT", "Conflict"),
        (409, "POST", "AlreadyExists"),
    ],
)
def test_what_is_refused_never_reaches_the_api_server(status: int, method: str, reason: str) -> None:
    async def act(through: Through) -> None:
        async with through.session.request(method, POD) as answer:
            told = await answer.json()
            assert (answer.status, told["code"], told["reason"]) == (status, status, reason)
            assert answer.headers.get("Retry-After") == ("1" if status == 429 else None)
        assert through.api.done == []

    assert play(Told(Fault(refused=status)), act).told == [f"refused: {status}"]


def test_what_is_lost_was_done_and_500_is_said() -> None:
    async def act(through: Through) -> None:
        status, _ = await through.ask("POST", PODS, json={})
        assert (status, len(through.api.done)) == (500, 1)

    play(Told(Fault(lost=True)), act)


@pytest.mark.parametrize(("when", "done"), [("before", 0), ("after", 1)])
def test_a_connection_is_cut_before_or_after_it_was_done(when: str, done: int) -> None:
    async def act(through: Through) -> None:
        with pytest.raises(aiohttp.ClientConnectionError):
            await through.ask("POST", PODS, json={})
        assert len(through.api.done) == done
        assert through.deaths == []

    play(Told(Fault(cut=when)), act)


@pytest.mark.parametrize(("answer", "number"), [("first", 1), ("second", 2)])
def test_a_write_is_done_twice_with_the_same_body(answer: str, number: int) -> None:
    async def act(through: Through) -> None:
        assert await through.ask("POST", PODS, data=b"body") == (201, {"number": number})
        assert through.api.done == [("POST", PODS, b"body", "")] * 2

    play(Told(Fault(twice=answer)), act)


def test_a_late_answer_comes_after_it_was_done() -> None:
    async def act(through: Through) -> None:
        began = asyncio.get_running_loop().time()
        asking = asyncio.ensure_future(through.ask("PUT", POD, json={}))
        await until(lambda: bool(through.api.done))
        assert not asking.done()
        assert (await asking)[0] == 200
        assert asyncio.get_running_loop().time() - began >= 0.5

    play(Told(Fault(late_s=0.5)), act)


def test_who_does_not_wait_for_a_late_answer_has_it_done_once() -> None:
    async def act(through: Through) -> None:
        with pytest.raises(TimeoutError):
            await through.ask("PUT", POD, json={}, timeout=aiohttp.ClientTimeout(total=1.0))
        assert len(through.api.done) == 1

    play(Told(Fault(late_s=TOO_LATE_S)), act)


@pytest.mark.parametrize(("when", "done"), [("before", 0), ("after", 1)])
def test_the_operator_dies_before_or_after_a_write_and_has_no_answer(when: str, done: int) -> None:
    async def act(through: Through) -> None:
        with pytest.raises(aiohttp.ClientConnectionError):
            await through.ask("POST", PODS, json={})
        assert through.deaths == [done]
        assert len(through.api.done) == done

    play(Told(Fault(death=when)), act)


def test_a_watch_ends_in_order_after_so_many_events() -> None:
    async def act(through: Through) -> None:
        versions = [each["object"]["metadata"]["resourceVersion"] for each in await through.watched()]
        assert versions == ["0", "1", "2", "3"]

    play(Told(Fault(ends="order", watched_s=60, watched_events=4)), act)


def test_a_watch_that_tells_nothing_ends_by_the_clock() -> None:
    async def act(through: Through) -> None:
        assert len(await through.watched()) == Api.EVENTS

    play(Told(Fault(ends="order", watched_s=0.1, watched_events=60)), act)


def test_a_watch_ends_with_410_gone() -> None:
    async def act(through: Through) -> None:
        *events, last = await through.watched()
        assert len(events) == 2
        assert (last["type"], last["object"]["code"], last["object"]["kind"]) == ("ERROR", 410, "Status")

    play(Told(Fault(ends="gone", watched_s=60, watched_events=2)), act)


def test_a_watch_is_torn_in_the_middle_of_an_event() -> None:
    async def act(through: Through) -> None:
        pieces = []

        async def read() -> None:
            async with through.session.get(f"{PODS}?watch=true") as answer:
                async for piece in answer.content.iter_any():
                    pieces.append(piece)

        with pytest.raises(aiohttp.ClientPayloadError):
            await read()
        *whole, half = b"".join(pieces).split(b"\n")
        assert len(whole) == 2
        assert half
        with pytest.raises(json.JSONDecodeError):
            json.loads(half)

    play(Told(Fault(ends="torn", watched_s=60, watched_events=2)), act)


def test_a_watch_goes_on_in_the_calm_and_ends_with_whoever_watches() -> None:
    async def act(through: Through) -> None:
        async def read_to_its_end() -> None:
            async with through.session.get(f"{PODS}?watch=true") as answer:
                async for _ in answer.content:
                    through.faults.calm = True

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(read_to_its_end(), 3.0)
        await until(lambda: not through.api.watching)

    play(Told(Fault(ends="torn", watched_s=1.0, watched_events=60)), act)
