"""What is declared about a tool, once, at registration: never at the call, where a code path could forget it."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, NoReturn

from eventlog.errors import PayloadError
from eventlog.projections.intent import EffectClass
from eventlog.recovery.errors import BadArguments, BadTool, UnguardedEffect
from eventlog.recovery.sealed import Seal, seal
from eventlog.recovery.values import canonical_args

__all__ = ["KeyScope", "RetryPolicy", "Tool", "ToolSpec"]

KeyScope = Literal["attempt", "branch", "operation"]
_KINDS = inspect.Parameter
_RESERVED = "step"  # attempt.call(tool, step=...) is ours


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a try is repeated inside one call. `attempts_max` includes the first; the default never repeats.

    Repeated are only tries that surely were not sent and, where the class allows it, unknown ones. The delay before try n + 1 is
    random between 0 and `initial_s` * `factor` ** (n - 1), at most `delay_s_max` ("full jitter"); a receiver's Retry-After is kept.
    """

    attempts_max: int = 1
    initial_s: float = 0.2
    factor: float = 2.0
    delay_s_max: float = 30.0

    def __post_init__(self) -> None:
        if self.attempts_max < 1 or self.initial_s < 0 or self.factor < 1 or self.delay_s_max < 0:
            raise BadTool(f"{self}: attempts_max has to be at least 1, the times positive, factor at least 1")

    def delay_s(self, tries: int, retry_after: float | None = None) -> float:
        """Seconds to wait after `tries` tries."""
        ceiling = min(self.delay_s_max, self.initial_s * self.factor ** min(tries - 1, 60))
        return max(retry_after or 0.0, random.uniform(0.0, ceiling))  # noqa: S311 - spreads load, guards nothing


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """The declaration. `options` are recorded with each intent, so that recovery needs no memory of this process."""

    name: str
    version: str
    effect_class: EffectClass
    is_async: bool
    takes_ctx: bool
    signature: inspect.Signature
    key_scope: KeyScope
    operation: str | None
    key_argument: str | None
    key_ttl_ms: int | None
    settle_after_ms: int
    timeout_s: float | None
    deadline_s: float | None
    resource: str | None
    emits: bool
    approval: bool
    retry: RetryPolicy
    not_sent: tuple[type[BaseException], ...]
    rejects: tuple[type[BaseException], ...]
    classify: Callable[[BaseException], BaseException | None] | None
    encode: Callable[[Any], Any] | None
    decode: Callable[[Any], Any] | None
    reconcile_name: str | None
    doc: str = ""
    simple: dict[str, Any] | None = None  # name -> default, when every parameter may be given by place or by name
    options: dict[str, Any] = field(default_factory=dict)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """The arguments by name, defaults included, as they are recorded, and their sorted JSON. Raises BadArguments."""
        named = self._bind_simply(args, kwargs)
        if named is None:
            try:
                bound = self.signature.bind(*args, **kwargs)
            except TypeError as error:
                raise BadArguments(f"{self.name}: {error}") from None
            bound.apply_defaults()
            named = dict(bound.arguments)
        if self.key_argument is not None:
            named[self.key_argument] = None  # the runtime owns the key, whatever the model thought of (research: effects, row 3)
        try:
            return canonical_args(named)
        except PayloadError as error:
            raise BadArguments(
                f"{self.name}: argument {error.path}: {error.why}; a request is recorded before it is sent, so it has to be JSON"
            ) from None

    def _bind_simply(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """What bind() gives, for a signature without stars and arguments without faults; None: use inspect, which takes much longer."""
        if self.simple is None or len(args) > len(self.simple):
            return None
        if not args and kwargs.keys() == self.simple.keys():
            return kwargs
        named = dict(zip(self.simple, args, strict=False))
        if kwargs:
            if not kwargs.keys() <= self.simple.keys() or named.keys() & kwargs.keys():
                return None
            named.update(kwargs)
        if len(named) == len(self.simple):
            return named
        whole = {name: named.get(name, default) for name, default in self.simple.items()}
        return None if any(value is _KINDS.empty for value in whole.values()) else whole

    def spread(self, named: dict[str, Any], key: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The inverse of bind, for the call. Recorded names that the signature has lost raise BadArguments."""
        if self.key_argument is not None:
            named = {**named, self.key_argument: key}
        if self.simple is not None and named.keys() == self.simple.keys():
            return tuple([named[name] for name in self.simple]), {}
        left = dict(named)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, parameter in self.signature.parameters.items():
            if name not in left:
                if parameter.default is _KINDS.empty and parameter.kind not in (_KINDS.VAR_POSITIONAL, _KINDS.VAR_KEYWORD):
                    raise BadArguments(f"{self.name}: the recorded request has no {name!r}; the signature has changed")
                continue
            value = left.pop(name)
            if parameter.kind is _KINDS.VAR_POSITIONAL:
                args.extend(value)
            elif parameter.kind is _KINDS.VAR_KEYWORD:
                kwargs.update(value)
            elif parameter.kind is _KINDS.KEYWORD_ONLY:
                kwargs[name] = value
            else:
                args.append(value)
        if left:
            raise BadArguments(f"{self.name}: the recorded request has {sorted(left)}; the signature has changed")
        return tuple(args), kwargs


class Tool:
    """A sealed handle: give it to `attempt.call(tool, ...)`. `spec` says what was declared. It cannot be called, copied or pickled."""

    __slots__ = ("__name__", "__signature__", "__weakref__", "_ask", "_seal", "spec")

    def __init__(self, spec: ToolSpec, sealed: Seal, ask: Callable[..., Any] | None) -> None:
        put = object.__setattr__
        put(self, "spec", spec)
        put(self, "_seal", sealed)
        put(self, "_ask", ask)
        put(self, "__name__", spec.name)
        put(self, "__signature__", spec.signature)

    spec: ToolSpec
    _seal: Seal
    _ask: Callable[..., Any] | None

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        name = self.spec.name
        raise UnguardedEffect(f"{name} was called directly: use attempt.call({name}, ...), which records the intent first")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{self.spec.name}: a sealed tool cannot be changed")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise UnguardedEffect(f"{self.spec.name}: a sealed tool cannot be copied or pickled")

    def __repr__(self) -> str:
        return f"<Tool {self.spec.name} {self.spec.effect_class.value}>"


def make_tool(
    function: Callable[..., Any],
    effect_class: EffectClass,
    *,
    name: str | None,
    version: str,
    takes_ctx: bool,
    key_scope: KeyScope,
    operation: str | None,
    key_argument: str | None,
    key_ttl: timedelta | None,
    settle_after: timedelta,
    timeout: timedelta | float | None,
    deadline: timedelta | float | None,
    resource: str | None,
    emits: bool,
    approval: bool,
    retry: RetryPolicy,
    not_sent: tuple[type[BaseException], ...],
    rejects: tuple[type[BaseException], ...],
    classify: Callable[[BaseException], BaseException | None] | None,
    encode: Callable[[Any], Any] | None,
    decode: Callable[[Any], Any] | None,
    reconcile: Callable[..., Any] | None,
) -> Tool:
    """Check a declaration and seal the function. Raises BadTool."""
    label = name or getattr(function, "__name__", "") or type(function).__name__
    for what, text in (("name", label), ("version", version)):
        if type(text) is not str:
            raise BadTool(f"{label!s:.100}: {what}={text!r:.100} is no plain string; it is recorded with each intent")
    signature = _signature(function, label, takes_ctx)
    names = set(signature.parameters)
    if key_argument is None and "idempotency_key" in names:
        key_argument = "idempotency_key"
    if _RESERVED in names:
        raise BadTool(f"{label}: an argument called {_RESERVED!r} collides with attempt.call({label}, step=...); rename it")
    for what, argument in (("operation", operation), ("key_argument", key_argument), ("resource", resource)):
        if argument is not None and argument not in names:
            raise BadTool(f"{label}: {what}={argument!r} names no argument of it; it has {sorted(names)}")
    if (key_scope == "operation") != (operation is not None):
        raise BadTool(f"{label}: key_scope='operation' and operation='name of the argument with the business id' go together")
    if effect_class is EffectClass.KEYED and key_ttl is None:
        raise BadTool(f"{label}: KEYED needs key_ttl=, the time for which the receiver remembers a key")
    if effect_class is EffectClass.RECONCILABLE and reconcile is None:
        raise BadTool(f"{label}: RECONCILABLE needs reconcile=, which asks the receiver")
    if effect_class is EffectClass.TRANSACTIONAL and (reconcile is None) == (not emits):
        raise BadTool(f"{label}: TRANSACTIONAL needs reconcile=, which looks for its row, or emits=True when it only uses ctx.emit()")
    if emits and effect_class is not EffectClass.TRANSACTIONAL:
        raise BadTool(f"{label}: emits=True is for TRANSACTIONAL tools")
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
    options: dict[str, Any] = {
        "key_ttl_ms": _ms(key_ttl),
        "settle_after_ms": _ms(settle_after) or None,
        "timeout_ms": _ms(timeout),
        "reconcile": getattr(reconcile, "__qualname__", type(reconcile).__name__) if reconcile is not None else None,
        "approval": True if approval else None,
        "retry": {"attempts_max": retry.attempts_max} if retry.attempts_max > 1 else None,
    }
    spec = ToolSpec(
        name=label,
        version=version,
        effect_class=effect_class,
        is_async=is_async,
        takes_ctx=takes_ctx,
        signature=signature,
        key_scope=key_scope,
        operation=operation,
        key_argument=key_argument,
        key_ttl_ms=_ms(key_ttl),
        settle_after_ms=_ms(settle_after) or 0,
        timeout_s=_seconds(timeout),
        deadline_s=_seconds(deadline),
        resource=resource,
        emits=emits,
        approval=approval,
        retry=retry,
        not_sent=not_sent,
        rejects=rejects,
        classify=classify,
        encode=encode,
        decode=decode,
        reconcile_name=options["reconcile"],
        doc=inspect.getdoc(function) or "",
        simple=_simple(signature),
        options={key: value for key, value in options.items() if value is not None},
    )
    return Tool(spec, seal(function, label), reconcile)


def _signature(function: Callable[..., Any], label: str, takes_ctx: bool) -> inspect.Signature:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise BadTool(f"{label}: its signature cannot be read; wrap it in a function with named arguments") from None
    parameters = list(signature.parameters.values())
    if takes_ctx:
        if not parameters or parameters[0].kind not in (_KINDS.POSITIONAL_ONLY, _KINDS.POSITIONAL_OR_KEYWORD):
            raise BadTool(f"{label}: a tool takes ctx as its first argument: def {label}(ctx, ...)")
        parameters = parameters[1:]
    return signature.replace(parameters=parameters)


def _simple(signature: inspect.Signature) -> dict[str, Any] | None:
    parameters = signature.parameters.values()
    if any(parameter.kind is not _KINDS.POSITIONAL_OR_KEYWORD for parameter in parameters):
        return None
    return {parameter.name: parameter.default for parameter in parameters}


def _seconds(value: timedelta | float | None) -> float | None:
    return value.total_seconds() if isinstance(value, timedelta) else value


def _ms(value: timedelta | float | None) -> int | None:
    seconds = _seconds(value)
    return None if seconds is None else round(seconds * 1000)
