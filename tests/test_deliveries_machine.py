"""An adversarial harness against the delivery decisions, judged by an independent model of what each agent has really read.

Hooks are programs that are stepped one commit at a time, in any order, and may die between any two steps: before and after every commit,
before and after stdout. Boundaries get lost, doubled and late; foreign hooks replace the text; processes are killed, resumed under the same
conversation id, and leave hooks behind that run on. The model knows nothing of the protocol: only which text stood in which request.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from eventlog import Event, Recorded
from eventlog.projections import delivery_events as ev
from eventlog.projections.deliveries import DELIVERIES
from eventlog.projections.delivery_words import DeliveriesState, Presence, RestartStartup, SyncState
from eventlog.recovery import delivery as do
from eventlog.recovery.delivery import (
    Block,
    Caller,
    Decided,
    DeliveryLimits,
    Done,
    Facts,
    FailClosed,
    PassThrough,
    Reconcile,
    Refused,
    Wait,
)

THREADS = ("t", "u")
LIMITS = DeliveryLimits(redeliveries_max=2, restarts_max=3)
Hook = Generator[None, None, None]


@dataclass
class Line:
    """One chain of a process as the harness sees it. `results`: call -> text that the next request will hold."""

    turn_calls: list[str] = field(default_factory=list)
    hooks: dict[str, Hook] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)
    request: set[str] = field(default_factory=set)  # texts that the next request holds
    read: set[str] = field(default_factory=set)  # texts that some request has held
    passed: dict[str, int] = field(default_factory=dict)  # calls that were let through since a boundary of theirs reached the log, and when


@dataclass
class Process:
    thread: str
    key: str
    alive: bool = True
    prompt: str | None = None
    lines: dict[str, Line] = field(default_factory=lambda: {"main": Line(), "sub": Line()})


class Harness(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state: DeliveriesState = DELIVERIES.initial
        self.log: list[Recorded] = []
        self.processes: list[Process] = []
        self.late: list[tuple[Process | None, Hook]] = []  # hooks that nobody waits for any more
        self.reconciling: set[str] = set()
        self.launchers: dict[str, bool] = dict.fromkeys(THREADS, False)
        self.bytes: dict[str, str] = {}  # intent -> the first payload that was ever prepared
        self.detected: list[tuple[str, str]] = []
        self.dropped: set[str] = set()
        self.count = self.steps = 0

    # ---------------------------------------------------------------- the world

    def number(self) -> int:
        self.count += 1
        return self.count

    def facts(self, thread: str) -> Facts:
        n = self.number()
        active = self.state.active(thread)
        return Facts(1000 + n, f"f{n}", self.launchers[thread], active is not None and active.id in self.reconciling, LIMITS)

    def do(self, thread: str, command: Callable[..., Decided[Any]], *args: Any, **named: Any) -> Any:
        facts = self.facts(thread)
        decided = command(self.state, *args, **named, facts=facts)
        for event in decided.events:
            self.append(event, facts.now_ns)
        return decided.answer

    def append(self, event: Event, now_ns: int) -> None:
        recorded = Recorded(len(self.log) + 1, now_ns, event.type, event.stream, event.data)
        if event.type == ev.ACKNOWLEDGED:
            holder = self.state.incarnations[event.data["incarnation"]]
            process = next(one for one in self.processes if one.key == holder.process)
            assert self.bytes[event.stream] in process.lines["main"].read, f"{event.stream} was acknowledged and not read: {event}"
        if event.type == ev.MATERIALIZED:
            assert event.stream not in self.bytes, "a payload was replaced"
            self.bytes[event.stream] = event.data["payload"]
        self.state = DELIVERIES.handlers[event.type](self.state, recorded)
        self.log.append(recorded)

    def caller(self, process: Process, line: str) -> Caller:
        return Caller(process.thread, process.key, line, process.prompt, "one conversation")

    def alive(self, thread: str | None = None) -> list[Process]:
        return [one for one in self.processes if one.alive and thread in (None, one.thread)]

    # ---------------------------------------------------------------- the hook, one commit at a time

    def hook(self, process: Process, name: str, call: str, replaced: bool) -> Hook:
        """PreToolUse: each yield is a place where it may die. What it prints lands in the results, unless another hook replaced it."""
        line, caller = process.lines[name], self.caller(process, name)
        for _ in range(4):
            yield
            answer = self.do(process.thread, do.pre_tool_use, caller, call)
            if isinstance(answer, PassThrough) and call in line.hooks:  # what a hook says that outlived its batch is heard by nobody
                self.check_passed(process, line, call)
            yield
            if isinstance(answer, Reconcile):
                yield from self.reconcile(process.thread, answer.intent.id)
            elif not isinstance(answer, Wait):
                break
        if isinstance(answer, PassThrough):
            line.results.setdefault(call, "it ran")
        elif isinstance(answer, FailClosed):
            assert answer.reason
            assert answer.what_to_do
        elif isinstance(answer, Block):
            assert answer.payload == self.bytes[answer.intent], "payload drift"
            assert answer.sha256 == ev.digest(answer.payload)
            if not replaced:
                line.results.setdefault(call, answer.payload)
            yield
            if answer.bound:
                where = {"incarnation": answer.incarnation, "turn": answer.turn, "batch": answer.batch}
                self.do(process.thread, do.mark_delivered, answer.intent, **where)
                yield
        line.results.setdefault(call, "denied")

    def reconcile(self, thread: str, intent: str) -> Hook:
        if intent in self.reconciling:
            return
        self.reconciling.add(intent)
        try:
            known = self.state.intents[intent]
            yield
            fields = {"operation": "r", "commit": "c", "anchor": "a", "prepared_ns": 1, "base": known.base}
            answer = self.do(thread, do.materialize, intent, payload=f"{intent} says {known.triggers} by {self.number()}", **fields)
            going_on = self.state.intents[intent].state is SyncState.RECONCILING
            assert not isinstance(answer, Refused) or answer.moved or not going_on, "a result was refused for no reason"
            yield
        finally:
            self.reconciling.discard(intent)

    def check_passed(self, process: Process, line: Line, call: str) -> None:
        active = self.state.active(process.thread)
        line.passed.setdefault(call, len(self.log))
        first = min(line.passed.values())
        assert active is None or first <= active.first_seq, "a batch that began after the detection was let through"

    def boundary(self, process: Process, name: str, calls: list[str], results: dict[str, str]) -> Hook:
        receipts = {call: ev.digest(text) for call, text in results.items()}
        caller, line = self.caller(process, name), process.lines[name]
        yield
        if line.passed.keys() & set(calls):
            line.passed.clear()
        self.do(process.thread, do.batch_completed, caller, calls, receipts)

    def finish(self, line: Line, call: str, *, died: bool) -> None:
        """The hook of a call is over. One that died ends as `|| exit 2` says: denied, with whatever was printed before."""
        hook = line.hooks.pop(call)
        if died:
            hook.close()
            line.results.setdefault(call, "denied, no output")

    # ---------------------------------------------------------------- rules

    @initialize(prompted=st.booleans())
    def begin(self, prompted: bool) -> None:
        for thread in THREADS:
            process = Process(thread, f"pid-{self.number()}")
            self.processes.append(process)
            self.new_prompt(process, prompted)

    @rule(thread=st.sampled_from(THREADS))
    def something_changes(self, thread: str) -> None:
        n = self.number()
        self.detected.append((thread, f"op-{n}"))
        self.do(thread, do.detect, thread, base=f"b{n}", triggers=[f"op-{n}"])

    @rule(thread=st.sampled_from(THREADS), told=st.booleans(), prompted=st.booleans())
    def a_process_starts(self, thread: str, told: bool, prompted: bool) -> None:
        if len(self.alive(thread)) >= 2:
            return
        process = Process(thread, f"pid-{self.number()}")
        self.processes.append(process)
        if told:
            self.do(thread, do.start_incarnation, self.caller(process, "main"))
        if prompted:
            self.new_prompt(process, told)

    def new_prompt(self, process: Process, told: bool) -> None:
        for line in process.lines.values():  # an interrupt: what was not sent yet is gone, hooks are left to themselves
            for hook in line.hooks.values():
                self.late.append((process, hook))
            line.hooks.clear()
            line.turn_calls.clear()
            line.results.clear()
        process.prompt = f"p{self.number()}"
        if told:
            self.do(process.thread, do.turn_observed, self.caller(process, "main"), "prompt")

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), told=st.booleans())
    def a_prompt(self, data: st.DataObject, told: bool) -> None:
        self.new_prompt(data.draw(st.sampled_from(self.alive())), told)

    @precondition(lambda self: self.alive())
    @rule(
        data=st.data(),
        name=st.sampled_from(["main", "main", "main", "sub"]),
        n=st.integers(1, 3),
        replaced=st.sampled_from([False, False, False, True]),
        run=st.booleans(),
    )
    def a_turn_with_calls(self, data: st.DataObject, name: str, n: int, replaced: bool, run: bool) -> None:
        process = data.draw(st.sampled_from(self.alive()))
        line = process.lines[name]
        if line.turn_calls or process.prompt is None:
            return
        self.begin_turn(process, name, n, replaced)
        if run:
            self.run_hooks(line)

    def begin_turn(self, process: Process, name: str, n: int, replaced: bool) -> None:
        line = process.lines[name]
        line.read |= line.request
        line.request = set()
        for _ in range(n):
            call = f"call-{self.number()}"
            line.turn_calls.append(call)
            line.hooks[call] = self.hook(process, name, call, replaced)

    def run_hooks(self, line: Line) -> None:
        for call in list(line.hooks):
            for _ in line.hooks[call]:
                pass
            self.finish(line, call, died=False)

    @precondition(lambda self: self.alive())
    @rule(
        data=st.data(),
        turns=st.integers(1, 4),
        n=st.integers(1, 2),
        name=st.sampled_from(["main", "main", "main", "sub"]),
        steps=st.sampled_from([30, 30, 30, 7, 7, 6, 5, 4, 3, 2, 1]),
        fate=st.sampled_from(["fine", "fine", "fine", "doubled", "lost"]),
        replaced=st.sampled_from([False, False, True]),
    )
    def turns(self, data: st.DataObject, turns: int, n: int, name: str, steps: int, fate: str, replaced: bool) -> None:
        """What mostly happens: turns whose hooks end (or die after some steps, all in the same way) and whose boundaries arrive."""
        process = data.draw(st.sampled_from(self.alive()))
        line = process.lines[name]
        if process.prompt is None:
            self.new_prompt(process, told=True)
        for _ in range(turns):
            if not line.turn_calls:
                self.begin_turn(process, name, n, replaced)
            for call, hook in list(line.hooks.items()):
                ended = any(next(hook, self) is self for _ in range(steps))
                self.finish(line, call, died=not ended)
            self.end_batch(process, name, fate, results=False)

    @precondition(lambda self: any(self.state.active(thread) for thread in THREADS))
    @rule(data=st.data(), told=st.sampled_from([True, True, False]))
    def a_launcher_does_its_work(self, data: st.DataObject, told: bool) -> None:
        """It binds a restart of whatever is prepared, and starts the replacement; its first turn follows."""
        thread = data.draw(st.sampled_from([one for one in THREADS if self.state.active(one)]))
        self.launchers[thread] = True
        if isinstance(self.do(thread, do.bind_restart, thread, "restarted on purpose"), Done):
            self.launch(thread, "accepted" if told else "bound")
            if told:
                process = self.processes[-1]
                self.begin_turn(process, "main", 1, replaced=False)
                self.run_hooks(process.lines["main"])
        self.launchers[thread] = False

    def waiting_hooks(self) -> list[tuple[Line, str]]:
        return [(line, call) for one in self.alive() for line in one.lines.values() for call in line.hooks]

    @precondition(lambda self: self.waiting_hooks())
    @rule(data=st.data(), steps=st.integers(1, 9))
    def a_hook_goes_on(self, data: st.DataObject, steps: int) -> None:
        line, call = data.draw(st.sampled_from(self.waiting_hooks()))
        for _ in range(steps):
            try:
                next(line.hooks[call])
            except StopIteration:
                self.finish(line, call, died=False)
                return

    @precondition(lambda self: self.waiting_hooks())
    @rule(data=st.data())
    def a_hook_dies(self, data: st.DataObject) -> None:
        line, call = data.draw(st.sampled_from(self.waiting_hooks()))
        self.finish(line, call, died=True)

    def full_batches(self) -> list[tuple[Process, str]]:
        return [(one, name) for one in self.alive() for name, line in one.lines.items() if line.turn_calls and not line.hooks]

    @precondition(lambda self: self.full_batches())
    @rule(data=st.data(), fate=st.sampled_from(["fine", "fine", "fine", "lost", "doubled", "late"]), results=st.booleans())
    def a_batch_ends(self, data: st.DataObject, fate: str, results: bool) -> None:
        process, name = data.draw(st.sampled_from(self.full_batches()))
        self.end_batch(process, name, fate, results)

    def end_batch(self, process: Process, name: str, fate: str, results: bool) -> None:
        line = process.lines[name]
        texts = dict(line.results)
        if results:
            for call, text in texts.items():
                if text == "it ran":
                    self.do(process.thread, do.call_returned, self.caller(process, name), call)
            if all(text == "it ran" for text in texts.values()):
                line.passed.clear()
        line.request |= set(texts.values())
        if fate in ("fine", "doubled"):
            for _ in range(2 if fate == "doubled" else 1):
                for _ in self.boundary(process, name, line.turn_calls, texts):
                    pass
        elif fate == "late":
            self.late.append((process, self.boundary(process, name, list(line.turn_calls), texts)))
        line.turn_calls, line.results = [], {}

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def a_late_hook_goes_on(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.late) - 1))
        try:
            next(self.late[index][1])
        except StopIteration:
            del self.late[index]

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), told=st.booleans(), compacted=st.sampled_from([False, False, False, True]))
    def the_model_stops(self, data: st.DataObject, told: bool, compacted: bool) -> None:
        process = data.draw(st.sampled_from(self.alive()))
        line = process.lines["main"]
        if line.turn_calls or process.prompt is None:
            return
        if compacted:  # the texts of the next request are rewritten
            line.request = set()
            self.do(process.thread, do.turn_observed, self.caller(process, "main"), "compacted")
        line.read |= line.request
        line.request = set()
        if told:
            line.passed.clear()
            self.do(process.thread, do.turn_observed, self.caller(process, "main"), "stop")

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), resumed=st.booleans())
    def a_process_is_killed(self, data: st.DataObject, resumed: bool) -> None:
        process = data.draw(st.sampled_from(self.alive()))
        process.alive = False
        for line in process.lines.values():
            self.late += [(None, hook) for hook in line.hooks.values()]  # its hooks outlive it
            line.hooks.clear()
        if resumed:  # the same conversation id, what was read stays in its transcript, and the process is another one
            again = Process(process.thread, f"pid-{self.number()}", prompt=f"p{self.number()}")
            self.processes.append(again)

    @rule(thread=st.sampled_from(THREADS), alive=st.sampled_from([False, False, True]))
    def a_launcher(self, thread: str, alive: bool) -> None:
        self.launchers[thread] = alive

    @rule(thread=st.sampled_from(THREADS), fate=st.sampled_from(["accepted", "accepted", "bound", "nothing", "twice"]))
    def a_launch(self, thread: str, fate: str) -> None:
        self.launch(thread, fate)

    def launch(self, thread: str, fate: str) -> None:
        intent = self.state.active(thread)
        if not self.launchers[thread] or intent is None or not isinstance(intent.proof, RestartStartup) or intent.proof.accepted_ns:
            return
        if self.state.incarnations[intent.proof.incarnation].presence is not Presence.MINTED:
            self.do(thread, do.bind_restart, thread, "the replacement was not accepted")
            return
        process = Process(thread, f"pid-{self.number()}", prompt=f"p{self.number()}")
        self.processes.append(process)
        assert intent.payload is not None
        process.lines["main"].request = {intent.payload}  # its first input
        caller = self.caller(process, "main")
        if fate in ("bound", "twice"):
            self.do(thread, do.start_incarnation, caller, startup_id=intent.proof.startup_id)
        if fate in ("accepted", "twice"):
            self.do(thread, do.accept_startup, caller, intent.proof.startup_id)
        if fate == "nothing":
            self.do(thread, do.bind_restart, thread, "it died before the handshake")

    @rule(thread=st.sampled_from(THREADS), what=st.sampled_from(["retry", "retry", "drop", "dirty", "moot"]), really=st.integers(0, 5))
    def rare_things(self, thread: str, what: str, really: int) -> None:
        intent = self.state.active(thread)
        if intent is None or (really != 5 and not intent.state.loud):
            return
        if what == "dirty":
            self.do(thread, do.recovery_required, intent.id, "edits")
        elif what == "moot":
            if isinstance(self.do(thread, do.supersede, intent.id, "moot"), Done):
                self.dropped.add(intent.id)
        elif (
            isinstance(self.do(thread, do.resolve, intent.id, what, reason="r", actor="ann", seen=intent.version), Done) and what == "drop"
        ):
            self.dropped.add(intent.id)

    # ---------------------------------------------------------------- what must hold

    @invariant()
    def nothing_is_lost_and_nothing_is_acknowledged_unread(self) -> None:
        known = {(one.thread, trigger) for one in self.state.intents.values() for trigger in one.triggers}
        assert set(self.detected) <= known
        for intent in self.state.intents.values():
            if intent.state is SyncState.SUPERSEDED:
                assert intent.id in self.dropped
            elif intent.state is SyncState.ACKNOWLEDGED:
                assert any(self.bytes[intent.id] in one.lines["main"].read for one in self.processes if one.thread == intent.thread)
            elif intent.payload is not None:
                assert intent.payload == self.bytes[intent.id]
                assert intent.id in self.state.threads[intent.thread].open

    @invariant()
    def at_most_one_live_incarnation_claims_an_intent(self) -> None:
        for thread in THREADS:
            live = [one for one in self.state.incarnations.values() if one.thread == thread and one.presence is Presence.LIVE]
            assert len(live) <= 1
        marked = [one.delivered_intent_id for one in self.state.incarnations.values() if one.delivered_intent_id is not None]
        assert len(marked) == len(set(marked))

    @invariant()
    def every_thread_is_one_step_from_progress(self) -> None:
        """An honest process, and a person where it is loud, always come to an end: nothing fails closed for ever."""
        self.steps += 1
        for thread in THREADS:
            if self.state.active(thread) is not None and self.steps % 6 == 0:
                self.honest(thread)

    def teardown(self) -> None:
        self.steps = 5
        self.every_thread_is_one_step_from_progress()

    def honest(self, thread: str) -> None:
        state = copy.deepcopy(self.state)
        who = Caller(thread, "pid-honest", prompt="p-honest")
        seq = len(self.log)

        def step(command: Callable[..., Decided[Any]], *args: Any, **named: Any) -> Any:
            nonlocal state, seq
            facts = Facts(10**9 + seq, f"h{seq}", False, False, LIMITS)
            decided = command(state, *args, **named, facts=facts)
            for event in decided.events:
                seq += 1
                state = DELIVERIES.handlers[event.type](state, Recorded(seq, facts.now_ns, event.type, event.stream, event.data))
            return decided.answer

        for n in range(4 * len(state.threads[thread].open) + 4):
            active = state.active(thread)
            if active is None:
                return
            if active.state.loud:
                step(do.resolve, active.id, "retry", reason="r", actor="ann", seen=active.version)
            answer = step(do.pre_tool_use, who, f"h-{n}")
            if isinstance(answer, Reconcile):
                fields = {"operation": "r", "commit": "c", "anchor": "a", "prepared_ns": 1, "payload": "p", "base": answer.intent.base}
                step(do.materialize, answer.intent.id, **fields)
                answer = step(do.pre_tool_use, who, f"h-{n}")
            receipts = {f"h-{n}": answer.sha256} if isinstance(answer, Block) else {}
            step(do.batch_completed, replace(who), [f"h-{n}"], receipts)
        raise AssertionError(f"{thread} does not get on: {state.active(thread)}")


Harness.TestCase.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestHarness = Harness.TestCase
