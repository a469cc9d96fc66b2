"""OpenTelemetry spans for guarded effects, by the semantic conventions for generative AI (`execute_tool`). The extra is `eventlog[otel]`.

    from eventlog.recovery.otel import OpenTelemetry
    tools = Toolbox(log, observer=OpenTelemetry())

| attribute                     | is                                                                                                |
|-------------------------------|---------------------------------------------------------------------------------------------------|
| gen_ai.operation.name         | execute_tool                                                                                      |
| gen_ai.tool.name              | the name of the tool                                                                              |
| gen_ai.tool.call.id           | the intent, `branch@attempt:step`: `eventlog effects show LOG ID` has the rest                     |
| error.type                    | the class of the error: that of the tool, where its outcome is one; status is then Error           |
| eventlog.effect.class         | the effect class                                                                                  |
| eventlog.effect.by            | guard, or recovery                                                                                |
| eventlog.effect.state         | the state of the intent at the end                                                                |
| eventlog.effect.try           | the number of the last try, over all runs; 0: never sent                                          |
| eventlog.effect.sent          | tries in this span                                                                                |
| eventlog.effect.replayed      | true: it was over before, and its recorded outcome was given                                      |
| eventlog.effect.source        | who brought it to its end: call, resend, reconciled, human, recovery, cancel                       |

Spans hold no arguments, no results and no messages of errors, all of which may repeat what a model or a user said. The span is the current
one while the tool runs, so that what the tool does (an HTTP call) becomes its child.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from opentelemetry import trace

from eventlog.recovery.errors import EffectFailed
from eventlog.recovery.observing import ObservedEffect

__all__ = ["OpenTelemetry"]


class OpenTelemetry:
    """An observer that makes a span of each effect. `tracer`: one of yours, else that of the global provider."""

    def __init__(self, tracer: trace.Tracer | None = None) -> None:
        self._tracer: trace.Tracer = tracer if tracer is not None else trace.get_tracer("eventlog")

    def effect(self, effect: ObservedEffect) -> AbstractContextManager[None]:
        """The span around one effect."""
        return self._span(effect)

    @contextmanager
    def _span(self, effect: ObservedEffect) -> Iterator[None]:
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": effect.tool,
            "gen_ai.tool.call.id": effect.intent,
            "eventlog.effect.class": effect.effect_class.value,
            "eventlog.effect.by": effect.by,
        }
        # The message of an exception may quote the arguments: neither an exception event nor a description.
        with self._tracer.start_as_current_span(
            f"execute_tool {effect.tool}", attributes=attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield
            except BaseException as error:
                span.set_attribute("error.type", _type_of(error))
                span.set_status(trace.StatusCode.ERROR)
                raise
            finally:
                if effect.state is not None:
                    span.set_attribute("eventlog.effect.state", effect.state.value)
                span.set_attribute("eventlog.effect.try", effect.tries)
                span.set_attribute("eventlog.effect.sent", effect.sent)
                span.set_attribute("eventlog.effect.replayed", effect.replayed)
                if effect.source is not None:
                    span.set_attribute("eventlog.effect.source", effect.source)


def _type_of(error: BaseException) -> str:
    """The class that the tool raised, where that is the outcome; else the class of what the caller gets."""
    if isinstance(error, EffectFailed) and error.error_type:
        return error.error_type
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
