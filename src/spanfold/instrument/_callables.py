"""What is decorated is not always a function: callable objects, built-ins, bound methods.

None of these binds when it stands in a class, so the traced twin must not
either, and everything about them but the call stays their own.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any


class TracedObject:
    """A callable object whose calls are recorded; attributes, class and state are those of the object."""

    __slots__ = ("__weakref__", "__wrapped__", "_rebuild")

    def __init__(self, target: Any, rebuild: Callable[[Any], Any]) -> None:
        object.__setattr__(self, "__wrapped__", target)
        object.__setattr__(self, "_rebuild", rebuild)

    @property  # type: ignore[misc]  # typeshed has an attribute here
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # nobody sets it
        kind: Any = type(self.__wrapped__)
        return kind

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__wrapped__, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__wrapped__, name)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self._rebuild, (self.__wrapped__,)


def traced_object(target: Any, wrapper: Any, rebuild: Callable[[Any], Any]) -> Any:
    """Return the traced twin of a callable object.

    Args:
        target: The object.
        wrapper: The traced function that calls it.
        rebuild: Makes the twin of an object again, when a twin is copied or unpickled.
    """
    if inspect.ismethod(called := getattr(target, "__call__", None)):  # noqa: B004 - an object's
        functools.update_wrapper(wrapper, called)
    # A class of its own whose `__call__` is the traced function: `inspect` sees there what it sees on the object.
    own: dict[str, Any] = {name: _passed_on(name) for name in ("__doc__", "__module__")}
    kind = type(type(target).__name__, (TracedObject,), {**own, "__slots__": (), "__call__": staticmethod(wrapper)})
    return kind(target, rebuild)


def _passed_on(name: str) -> property:
    """Return an attribute that every class has, read from the object instead."""
    return property(lambda self: getattr(self.__wrapped__, name))
