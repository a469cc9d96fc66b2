"""`dataclass`, `field`, `replace`, `asdict` as this library uses them: slots, no inheritance, nothing compiled (see `light`).

`dataclasses` compiles six functions for each class as it is defined. Here all classes share them. A class is a value: equal if type and
fields are; with `frozen=True` it cannot be changed, and can be hashed.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import asdict as asdict
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import replace as replace
else:
    _SPECIAL = frozenset({"__dict__", "__weakref__"})

    class _Factory:
        def __init__(self, make):
            self.make = make

    class _RealFields:
        """For whoever uses `dataclasses` on one of ours: its description, made when it is asked for."""

        def __get__(self, _one, cls):
            import dataclasses

            body = {"__annotations__": dict(cls.__annotations__)}
            for name, value in cls._defaults.items():
                body[name] = dataclasses.field(default_factory=value.make) if isinstance(value, _Factory) else value
            cls.__dataclass_fields__ = dataclasses.dataclass(type(cls.__name__, (), body)).__dataclass_fields__
            return cls.__dataclass_fields__

    def field(*, default_factory):
        """A default that is made anew for each instance."""
        return _Factory(default_factory)

    def dataclass(*, frozen=False, slots=True):
        """A class decorator. `slots` is always on."""

        def decorate(cls):
            names = tuple(cls.__annotations__)
            body = {name: value for name, value in vars(cls).items() if name not in _SPECIAL and name not in names}
            defaults = {name: vars(cls)[name] for name in names if name in vars(cls)}
            body.update(__slots__=names, __match_args__=names, __init__=_init, __repr__=_repr, __eq__=_eq, __reduce__=_reduce)
            body["__hash__"] = _hash if frozen else None
            body["__dataclass_fields__"] = _RealFields()
            if frozen:
                body.update(__setattr__=_refuse, __delattr__=_refuse)
            made = type(cls)(cls.__name__, cls.__bases__, body)
            made.__qualname__ = cls.__qualname__
            made._defaults = defaults
            made._puts = tuple((name, vars(made)[name].__set__) for name in names)
            made._init_fields = tuple((name, put, defaults.get(name, _NONE)) for name, put in made._puts)
            return made

        return decorate

    _NONE = object()

    def _init(self, *args, **named):
        fields, given = self._init_fields, len(args)
        if given > len(fields):
            raise TypeError(f"{type(self).__name__} takes {len(fields)} arguments, {given} were given")
        for (_, put, _), value in zip(fields, args, strict=False):
            put(self, value)
        left = len(named)
        for name, put, default in fields[given:] if given else fields:
            if left and name in named:
                value = named[name]
                left -= 1
            elif default is _NONE:
                raise TypeError(f"{type(self).__name__} needs {name!r}")
            else:
                value = default.make() if default.__class__ is _Factory else default
            put(self, value)
        if left:
            raise TypeError(f"{type(self).__name__}: not its fields, or given twice: {', '.join(named)}")

    def _values(one):
        return tuple([getattr(one, name) for name in one.__slots__])

    def _repr(self):
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__qualname__}({fields})"

    def _eq(self, other):
        return _values(self) == _values(other) if type(other) is type(self) else NotImplemented

    def _hash(self):
        return hash(_values(self))

    def _refuse(self, name, *_value):
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot change {name!r} of {type(self).__name__}, a value")

    def _reduce(self):
        return _restore, (type(self), _values(self))

    def _restore(cls, values):
        made = cls.__new__(cls)
        for (_, put), value in zip(cls._puts, values, strict=True):
            put(made, value)
        return made

    def replace(one, /, **changes):
        """A copy with other values in these fields."""
        cls = type(one)
        made = cls.__new__(cls)
        left = len(changes)
        for name, put in cls._puts:
            if name in changes:
                put(made, changes[name])
                left -= 1
            else:
                put(made, getattr(one, name))
        if left:
            raise TypeError(f"{cls.__name__} has no {', '.join(sorted(changes.keys() - set(cls.__slots__)))}")
        return made

    def asdict(one):
        """The fields as a dict, and so on for all values in it."""
        return {name: _plain(getattr(one, name)) for name in one.__slots__}

    def _plain(value):
        if hasattr(type(value), "_puts"):
            return asdict(value)
        if type(value) in (list, tuple):
            return type(value)(_plain(one) for one in value)
        if type(value) is dict:
            return {key: _plain(one) for key, one in value.items()}
        return value
