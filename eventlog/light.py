"""What `typing` and `dataclasses` give to a type checker, at a tenth of their price at run time.

A hook is a process that lives for a moment: importing `typing` takes a third of what a bare interpreter takes, `dataclasses` and a
dozen of its classes more than all of it. A type checker sees the real ones here; at run time stand these, which do what this library
needs of them. Write `from eventlog.light import TYPE_CHECKING` and guard imports that are for annotations alone.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Generic as Generic
    from typing import NamedTuple as NamedTuple
    from typing import ParamSpec as ParamSpec
    from typing import Protocol as Protocol
    from typing import TypeVar as TypeVar
else:
    from collections import namedtuple

    class _Fields(type):
        """Makes a namedtuple of a class body, as typing.NamedTuple does."""

        def __new__(mcs, name, bases, body):
            if not bases:
                return super().__new__(mcs, name, bases, body)
            fields = list(body.get("__annotations__", ()))
            defaults = [body.pop(field) for field in fields if field in body]
            made = namedtuple(name, fields, defaults=defaults, module=body.pop("__module__"))  # noqa: PYI024
            body.pop("__qualname__")
            for key, value in body.items():
                setattr(made, key, value)
            return made

    class NamedTuple(metaclass=_Fields):
        """A tuple with names."""

    class Generic:
        """Takes type arguments, and forgets them."""

        __slots__ = ()

        @classmethod
        def __class_getitem__(cls, _arguments):
            return cls

    class Protocol(Generic):
        """For the type checker alone."""

        __slots__ = ()

    def TypeVar(name, *_bounds, **_options):
        return name

    ParamSpec = TypeVar


def of(module: str, attribute: str) -> object:
    """This attribute of that module, imported now. (`importlib` brings `warnings` along.)"""
    import sys

    __import__(module)
    found: object = getattr(sys.modules[module], attribute)
    return found


class Lazy:
    """A module that is imported when something of it is first asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        found = of(self._name, attribute)
        setattr(self, attribute, found)
        return found
