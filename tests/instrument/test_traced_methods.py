"""Decorated methods of every kind, in every order, on every kind of class."""

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import pytest

import spanfold
from spanfold.journal import content
from tests.instrument.reading import spans

T = TypeVar("T")


class Plain:
    """Every kind of method, with receivers of odd names."""

    fixed = 3

    def method(this, x: int) -> Any:
        return type(this).__name__, this.fixed, x

    @classmethod
    def on_class(cls, x: int) -> Any:
        return cls.__name__, x

    @staticmethod
    def on_nothing(self: int, x: int = 0) -> Any:
        return self, x

    @property
    def value(self) -> int:
        """The value."""
        return self.fixed * 2

    @value.setter
    def value(self, new: int) -> None:
        self.fixed = new

    @value.deleter
    def value(self) -> None:
        self.fixed = 0

    @functools.cached_property
    def slow(self) -> int:
        return self.fixed * 5

    added = functools.partialmethod(method, 40)

    async def later(self, x: int) -> int:
        return x

    def stream(self, x: int) -> Iterator[int]:
        yield x

    def __call__(self, x: int) -> int:
        return -x

    def __getitem__(self, x: int) -> int:
        return x * x


class Outside(Plain):
    """The decorator above every other one."""

    for _name in (
        "method",
        "on_class",
        "on_nothing",
        "value",
        "slow",
        "added",
        "later",
        "stream",
        "__call__",
        "__getitem__",
    ):
        locals()[_name] = spanfold.traced(vars(Plain)[_name])
    slow.__set_name__(Plain, "slow")  # noqa: F821  # type: ignore[name-defined]  # made by the loop
    del _name


class Inside(Plain):
    """The decorator below every other one."""

    method = spanfold.traced(Plain.method)
    on_class = classmethod(spanfold.traced(vars(Plain)["on_class"].__func__))
    on_nothing = staticmethod(spanfold.traced(vars(Plain)["on_nothing"].__func__))
    value = property(*(spanfold.traced(getattr(Plain.value, part)) for part in ("fget", "fset", "fdel")))
    slow = functools.cached_property(spanfold.traced(vars(Plain)["slow"].func))
    added = functools.partialmethod(method, 40)
    later = spanfold.traced(Plain.later)
    stream = spanfold.traced(Plain.stream)
    __call__ = spanfold.traced(Plain.__call__)
    __getitem__ = spanfold.traced(Plain.__getitem__)


USES: dict[str, Callable[[type[Plain], Plain], Any]] = {
    "method": lambda c, o: (o.method(1)[1:], c.method(o, x=2)[1:]),
    "on_class": lambda c, o: (c.on_class(1)[1:], o.on_class(x=2)[1:]),
    "on_nothing": lambda c, o: (c.on_nothing(1, 2), o.on_nothing(self=3), c.on_nothing(o, x=1)[1]),
    "value": lambda c, o: (o.value, setattr(o, "value", 9), o.value, delattr(o, "value"), o.fixed),
    "slow": lambda c, o: (o.slow, o.slow, "slow" in vars(o)),
    "added": lambda c, o: o.added()[1:],
    "stream": lambda c, o: (list(o.stream(1)), list(c.stream(o, 2))),
    "__call__": lambda c, o: (o(1), c.__call__(o, 2)),
    "__getitem__": lambda c, o: o[3],
}


@pytest.mark.case("C-016")
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("cls", [Outside, Inside])
def test_a_decorated_method_works_on_class_and_instance_whatever_the_order(
    where: Path, cls: type[Plain], use: str
) -> None:
    expected = USES[use](Plain, Plain())

    assert USES[use](cls, cls()) == expected
    with spanfold.run("r", dir=where):
        assert USES[use](cls, cls()) == expected

    assert len(spans(where)) >= 2
    # The receiver is never recorded, and what is no receiver is, whatever it is called.
    for recorded in spans(where)[:-1]:
        inputs = content(recorded, output=False)
        if use == "on_nothing":
            assert set(inputs) == {"self", "x"} or set(inputs) == {"self"}
        else:
            assert inputs is None or set(inputs) <= {"x", "new"}


@pytest.mark.case("C-016")
def test_a_plain_function_with_a_parameter_called_self_records_it(where: Path) -> None:
    @spanfold.traced(name="f")
    def f(self: str, cls: int) -> None: ...

    class WithField:
        f = "no method"

    with spanfold.run("r", dir=where):
        f("mine", 2)
        f(WithField(), 3)  # type: ignore[arg-type]  # an object whose class has something of that name

    found = [content(s, output=False) for s in spans(where, "f")]
    assert found[0] == {"self": "mine", "cls": 2}
    assert set(found[1]) == {"self", "cls"}


def test_a_receiver_is_recognised_under_an_alias_in_a_subclass_and_below_another_decorator(where: Path) -> None:
    def log(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def logged(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return logged

    @spanfold.traced(name="loose")
    def loose(me: Any, x: int) -> int:
        return x

    class Base:
        secret = "receiver"

        @log
        @spanfold.traced(name="inner")
        def m(self, x: int) -> int:
            return x

        alias = m
        borrowed = loose

    class Child(Base):
        def m(self, x: int) -> int:
            return super().m(x)

        @staticmethod
        def borrowed(x: int) -> int:  # type: ignore[override]  # hides the method with another kind of thing
            return x

    with spanfold.run("r", dir=where):
        Child().m(1)
        Child().alias(2)
        Base().borrowed(3)
        loose("argument", 4)

    assert [content(s, output=False) for s in spans(where)[:-1]] == [
        {"x": 1},
        {"x": 2},
        {"x": 3},
        {"me": "argument", "x": 4},
    ]


@pytest.mark.case("C-016")
def test_abstract_slots_dataclass_generic_and_protocol_classes_stay_what_they_are(where: Path) -> None:
    class Abstract(abc.ABC):
        @spanfold.traced
        @abc.abstractmethod
        def over(self) -> int: ...

        @abc.abstractmethod
        @spanfold.traced
        def under(self) -> int: ...

        @property
        @abc.abstractmethod
        @spanfold.traced
        def value(self) -> int: ...

        @spanfold.traced
        @property
        @abc.abstractmethod
        def other(self) -> int: ...

    assert Abstract.__abstractmethods__ == {"over", "under", "value", "other"}
    with pytest.raises(TypeError, match="abstract"):
        Abstract()  # type: ignore[abstract]  # what is tested

    class Slots:
        __slots__ = ("x",)

        @spanfold.traced
        def get(self) -> int:
            return self.x

    @spanfold.traced
    @dataclasses.dataclass(slots=True, frozen=True)
    class Data:
        x: int = 4

        def get(self) -> int:
            return self.x

    @dataclasses.dataclass(order=True)
    @spanfold.traced
    class Sorted(Generic[T]):
        x: int = 4

        def get(self) -> int:
            return self.x

    class Asking(Protocol):
        def get(self) -> int: ...

    slots = Slots()
    slots.x = 4
    objects: list[Asking] = [slots, Data(), Sorted[int]()]
    with spanfold.run("r", dir=where):
        assert [o.get() for o in objects] == [4, 4, 4]
    assert Data() == Data(4)
    assert Sorted(1) < Sorted(2)
    assert dataclasses.replace(Data(), x=1).x == 1
    assert len(spans(where)) == 4
    assert all(content(s, output=False) is None for s in spans(where))


def test_a_decorated_class_traces_its_public_methods_once(where: Path) -> None:
    @spanfold.traced(kind="timing")
    class Service:
        limit = 3

        def __init__(self) -> None:
            self.private = self._private()

        def _private(self) -> int:
            return 1

        def work(self) -> int:
            return self.limit

        again = work

        @spanfold.traced(kind="tool", name="mine")
        def chosen(self) -> None: ...

        @staticmethod
        def still() -> int:
            return 1

        class Inner:
            def untouched(self) -> None: ...

    with spanfold.run("r", dir=where):
        service = Service()
        service.work()
        service.again()
        service.chosen()
        Service.still()
        Service.Inner().untouched()

    assert Service.work is Service.again
    base = Service.work.__qualname__.rpartition("<locals>.")[2]
    assert [s.name for s in spans(where)[:-1]] == [base, base, "execute_tool mine", base.replace("work", "still")]
