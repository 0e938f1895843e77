"""A broker hangs up when the store answers others and not this one, and at no other time."""

from __future__ import annotations

from ottla.broker.making_way import MakingWay

SESSION_S = 9.0


class House:
    """A broker, what it hears of the store and of the others, and what it does about it."""

    def __init__(self) -> None:
        self.silence_s = 0.0
        self.told: dict[int, int] = {}
        self.asked_since: list[float] = []
        self.registered = True
        self.done: list[str] = []
        self.way = MakingWay(
            self,
            silence_s=lambda: self.silence_s,
            session_s=lambda: SESSION_S,
            applied_elsewhere=self._applied_elsewhere,
            is_registered=lambda: self.registered,
            let_go=lambda: self.done.append("let go"),
        )

    def _applied_elsewhere(self, since: float) -> dict[int, int]:
        self.asked_since.append(since)
        return dict(self.told)

    def turn_away(self, why: str) -> None:
        self.done.append("turned away")

    def let_in(self) -> None:
        self.done.append("let in")


def silent(house: House, *told: dict[int, int]) -> None:
    """Looks once a second, beginning with 100, while the others tell these revisions."""
    for second, house.told in enumerate(told):
        house.silence_s = SESSION_S + second
        house.way.look(100.0 + second)


def test_a_store_that_answers_others_only() -> None:
    house = House()
    silent(house, {}, {1: 40}, {1: 40, 2: 40}, {1: 40, 2: 41})
    assert house.done == ["let go", "turned away"]
    assert house.way.made
    assert house.asked_since == [100.0] * 4


def test_a_store_that_answers_nobody() -> None:
    """The others know more than this broker does, as they may have heard the store's last word and this one not; but
    none of them moves on."""
    house = House()
    silent(house, {}, {1: 41}, *({1: 41, 2: 43} for _ in range(60)))
    assert house.done == []
    assert not house.way.made


def test_a_silence_shorter_than_a_session_and_another_one_later_are_two() -> None:
    house = House()
    silent(house, {1: 40})
    house.silence_s, house.told = 2.0, {1: 45}
    house.way.look(110.0)
    silent(house, {1: 45}, {1: 45})
    assert house.done == []


def test_it_serves_again_when_its_image_shows_its_registration() -> None:
    house = House()
    silent(house, {1: 40}, {1: 41}, {1: 42})
    assert house.done == ["let go", "turned away"]
    house.silence_s, house.registered = 0.1, False  # registered anew, and the image is still the old one
    house.way.look(120.0)
    assert house.way.made
    house.registered = True
    house.way.look(121.0)
    house.way.look(122.0)
    assert house.done == ["let go", "turned away", "let in"]
    assert not house.way.made
