"""Every sentence of seed 003, as given / when / then on the pure decisions; and what the fold refuses to build."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest

from eventlog import Event, EventLog, Recorded
from eventlog.projections import FoldError, fold
from eventlog.projections import delivery_events as ev
from eventlog.projections.deliveries import DELIVERIES
from eventlog.projections.delivery_words import DeliveriesState, RestartStartup, SoftBatch, SyncIntent, SyncState
from eventlog.projections.effects import ImpossibleTransition
from eventlog.recovery import delivery as do
from eventlog.recovery.delivery import Block, Caller, Decided, Done, Facts, FailClosed, PassThrough, Reconcile, Refused, Wait

S = SyncState
PAYLOAD = "operation op-1 changed your files \u2028 \x1b[0m é 漢"


class Book:
    """Decisions and their fold, in memory. `now` is the clock; `launcher`, `reconciler`: is one alive?"""

    def __init__(self) -> None:
        self.state = DELIVERIES.initial
        self.events: list[Recorded] = []
        self.now = 1000
        self.launcher = self.reconciler = False

    def facts(self) -> Facts:
        self.now += 1
        return Facts(self.now, f"r{self.now}", self.launcher, self.reconciler)

    def fold(self, events: Sequence[Event]) -> None:
        for event in events:
            recorded = Recorded(len(self.events) + 1, self.now, event.type, event.stream, event.data)
            self.state = DELIVERIES.handlers[event.type](self.state, recorded)
            self.events.append(recorded)

    def __call__(self, command: Callable[..., Decided[Any]], *args: Any, **named: Any) -> Any:
        before = orjson.dumps(DELIVERIES.dump(self.state))
        decided = command(self.state, *args, **named, facts=self.facts())
        assert orjson.dumps(DELIVERIES.dump(self.state)) == before, "a decision changed the state that it was given"
        self.fold(decided.events)
        return decided.answer

    def types(self, since: int = 0) -> list[str]:
        return [event.type for event in self.events[since:]]

    def intent(self, id_: str = "t#1") -> SyncIntent:
        return self.state.intents[id_]

    def detect(self, trigger: str = "op-1", base: str = "b1", thread: str = "t") -> Any:
        return self(do.detect, thread, base=base, triggers=[trigger])

    def pre(self, call: str, who: Caller) -> Any:
        return self(do.pre_tool_use, who, call)

    def materialize(self, id_: str = "t#1", payload: str = PAYLOAD, base: str = "b1") -> Any:
        fields = {"operation": "result-1", "commit": "abc", "anchor": "turn-1", "prepared_ns": 5}
        return self(do.materialize, id_, base=base, payload=payload, **fields)

    def mark(self, block: Block) -> Any:
        return self(do.mark_delivered, block.intent, incarnation=block.incarnation, turn=block.turn, batch=block.batch)

    def batch(self, who: Caller, *calls: str, seen: Sequence[str] = (), sha: str | None = None) -> Any:
        receipts = dict.fromkeys(seen, sha or ev.digest(PAYLOAD))
        return self(do.batch_completed, who, list(calls), receipts)


A = Caller("t", "pid-1", prompt="p1", session="conversation")
B = Caller("t", "pid-2", prompt="p2", session="conversation")


def materialized(who: Caller = A) -> Book:
    book = Book()
    book.detect()
    assert isinstance(book.pre("c1", who), Reconcile)
    assert isinstance(book.materialize(), Done)
    return book


def blocked(who: Caller = A) -> tuple[Book, Block]:
    book = materialized(who)
    block = book.pre("c1", who)
    assert isinstance(block, Block)
    return book, block


def delivered(who: Caller = A) -> tuple[Book, Block]:
    book, block = blocked(who)
    assert isinstance(book.mark(block), Done)
    return book, block


def restarting(launcher: bool = False) -> tuple[Book, RestartStartup]:
    """Delivered to a batch of pid-1 that was never completed; then a new prompt came."""
    book, _ = delivered()
    book.launcher = launcher
    assert isinstance(book(do.turn_observed, replace(A, prompt="p1b"), "prompt"), FailClosed)
    proof = book.intent().proof
    assert isinstance(proof, RestartStartup)
    return book, proof


# ------------------------------------------------------------------- the intent is the outbox


def test_one_event_stores_result_commit_payload_anchor_and_time_and_the_state() -> None:
    book = materialized()
    intent = book.intent()
    assert intent.state is S.MATERIALIZED
    assert (intent.operation, intent.commit, intent.payload, intent.anchor, intent.prepared_ns) == ("result-1", "abc", PAYLOAD, "turn-1", 5)
    assert intent.sha256 == ev.digest(PAYLOAD)
    assert book.types().count(ev.MATERIALIZED) == 1


@pytest.mark.parametrize("missing", ["operation", "commit", "payload", "anchor"])
def test_materialize_without_one_of_them_is_refused(missing: str) -> None:
    book = Book()
    book.detect()
    book.pre("c1", A)
    fields = {"operation": "r", "commit": "c", "payload": "p", "anchor": "a", missing: ""}
    assert isinstance(book(do.materialize, "t#1", base="b1", prepared_ns=5, **fields), Refused)
    assert book.intent().state is S.RECONCILING


def test_the_ordered_intents_and_their_states_are_all_there_is() -> None:
    book, _ = delivered()
    book.detect("op-2", "b2")
    assert [one.id for one in book.state.unresolved()] == ["t#1", "t#2"]
    assert book.state.active("t") == book.intent()


def test_the_older_intent_comes_first_and_the_younger_follows_in_the_same_commit() -> None:
    book, block = delivered()
    book.detect("op-2", "b2")
    book.batch(A, "c1", seen=["c1"])
    since = len(book.events)
    answer = book.pre("c2", A)
    assert isinstance(answer, Reconcile)
    assert (answer.intent.id, answer.acknowledged) == ("t#2", block.intent)
    assert book.types(since) == [ev.ACKNOWLEDGED, ev.BLOCKED, ev.ADMITTED]


# ------------------------------------------------------------------- SoftBatch


def test_soft_batch_binds_incarnation_turn_and_batch_before_anything_is_reconciled() -> None:
    book = Book()
    book.detect()
    answer = book.pre("c1", A)
    assert isinstance(answer, Reconcile)
    proof = answer.intent.proof
    assert isinstance(proof, SoftBatch)
    assert (proof.incarnation, proof.turn, proof.batch) == (book.state.threads["t"].live, 1, 1)
    assert book.types()[-2:] == [ev.BLOCKED, ev.ADMITTED]
    assert do.pre_tool_use(Book().state, A, "x", book.facts()).durable is False
    decided = do.pre_tool_use(_detected(), A, "c1", book.facts())
    assert decided.durable, "Block(intent) has to be on disk before the reconciler may act"


def _detected() -> DeliveriesState:
    book = Book()
    book.detect()
    return book.state


def test_every_sibling_waits_while_reconciliation_is_incomplete_and_never_passes() -> None:
    book = Book()
    book.detect()
    book.pre("c1", A)
    book.reconciler = True
    for call in ("c2", "c3"):
        assert book.pre(call, A) == Wait("t#1")
    book.reconciler = False  # it died: somebody has to take over, and still nobody passes
    assert isinstance(book.pre("c4", A), Reconcile)


def test_every_sibling_receives_the_saved_bytes() -> None:
    book, block = blocked()
    answers = [book.pre(call, A) for call in ("c2", "c3", "c1")]
    assert [(one.payload, one.sha256, one.batch) for one in answers] == [(PAYLOAD, block.sha256, block.batch)] * 3


def test_a_batch_that_was_let_through_stays_so_for_its_siblings_only() -> None:
    book = Book()
    assert book.pre("c1", A) == PassThrough()
    book.detect()
    assert book.pre("c2", A) == PassThrough()
    book.batch(A, "c1", "c2")
    assert isinstance(book.pre("c3", A), Reconcile)


def stop(book: Book) -> None:
    book(do.turn_observed, A, "stop")


def new_prompt(book: Book) -> None:
    book(do.turn_observed, replace(A, prompt="p9"), "prompt")


def results(book: Book) -> None:
    book(do.call_returned, A, "c1")


@pytest.mark.parametrize(
    ("end", "who"),
    [(stop, A), (new_prompt, replace(A, prompt="p9")), (lambda book: None, B), (results, A), (lambda book: None, replace(A, prompt="p8"))],
    ids=["stop", "new prompt", "new process", "results", "prompt seen at the call only"],
)
def test_a_lost_batch_boundary_does_not_disable_the_barrier(end: Callable[[Book], None], who: Caller) -> None:
    book = Book()
    book.pre("c1", A)
    book.detect()
    end(book)
    assert isinstance(book.pre("c2", who), Reconcile)


def test_results_of_some_calls_do_not_end_a_batch() -> None:
    book = Book()
    book.pre("c1", A)
    book.pre("c2", A)
    results(book)
    book.detect()
    assert book.pre("c3", A) == PassThrough()


# ------------------------------------------------------------------- never evidence


def acknowledged(book: Book) -> bool:
    return ev.ACKNOWLEDGED in book.types()


def test_never_evidence_a_sibling_hook() -> None:
    book, _ = delivered()
    for call in ("c2", "c3", "c1"):
        assert isinstance(book.pre(call, A), Block)
    book.batch(A, "c1", "c2", "c3", seen=["c2"])
    assert isinstance(book.pre("c3", A), Block), "a sibling's hook that came late"
    assert not acknowledged(book)
    assert book.intent().state is S.DELIVERED


def test_never_evidence_a_new_batch_id() -> None:
    book, block = delivered()
    book.batch(A, "c1", seen=[])  # the batch is over, and no result held the payload
    again = book.pre("c2", A)
    assert isinstance(again, Block)
    assert again.batch == block.batch + 1
    assert not acknowledged(book)


def test_never_evidence_a_process_start() -> None:
    book, _ = delivered()
    book.batch(A, "c1", seen=["c1"])
    book(do.start_incarnation, B)
    assert not acknowledged(book)
    assert isinstance(book.pre("c2", B), Block)
    assert not acknowledged(book)
    book, proof = restarting(launcher=True)
    book(do.start_incarnation, B, startup_id=proof.startup_id)
    assert not acknowledged(book)


def test_never_evidence_a_settings_fingerprint() -> None:
    book, _ = delivered()
    book.batch(A, "c1", seen=["c1"])
    imitator = replace(B, session=A.session, prompt=A.prompt, capabilities=A.capabilities)  # all equal, and another process
    assert isinstance(book.pre("c2", imitator), Block)
    assert not acknowledged(book)


def test_completion_alone_never_acknowledges() -> None:
    book, _ = delivered()
    book.batch(A, "c1", seen=["c1"])
    assert book.types()[-2:] == [ev.COMPLETED, ev.BATCH_COMPLETED]
    assert book.intent().state is S.DELIVERED
    assert isinstance(book.intent().proof, SoftBatch)


def test_a_later_call_without_the_completion_is_a_sibling() -> None:
    book, _ = delivered()
    assert isinstance(book.pre("c2", A), Block)
    stop(book)
    assert not acknowledged(book)


def test_the_completion_of_another_batch_is_none() -> None:
    book, _ = delivered()
    book.batch(A, "x1", seen=["x1"])
    assert isinstance(book.pre("c2", A), Block)
    assert not acknowledged(book)


def test_a_subagent_is_told_and_proves_nothing() -> None:
    book, _ = delivered()
    sub = replace(A, chain="sub-1")
    answer = book.pre("s1", sub)
    assert isinstance(answer, Block)
    assert (answer.payload, answer.bound) == (PAYLOAD, False)
    book.batch(sub, "s1", seen=["s1"])
    assert isinstance(book.pre("s2", sub), Block)
    book.batch(A, "c1", seen=["c1"])
    book.pre("s3", sub)
    assert not acknowledged(book)
    assert book.pre("c2", A).acknowledged == "t#1"


def test_what_a_subagent_was_blocked_for_first_is_bound_to_the_agent_itself_later() -> None:
    book = Book()
    book.detect()
    sub = replace(A, chain="sub-1")
    assert isinstance(book.pre("s1", sub), Reconcile)
    book.materialize()
    assert isinstance(book.pre("s1", sub), Block)
    book.batch(sub, "s1", seen=["s1"])
    assert isinstance(book.pre("s2", sub), Block)
    block = book.pre("c1", A)
    assert isinstance(block, Block)
    assert block.bound
    book.batch(A, "c1", seen=["c1"])
    assert book.pre("c2", A) == PassThrough("t#1")


# ------------------------------------------------------------------- MarkDelivered


def test_mark_delivered_does_its_four_things() -> None:
    book, block = blocked()
    before = book.intent().proof
    assert isinstance(book.mark(block), Done)
    intent = book.intent()
    assert intent.state is S.DELIVERED  # 1
    first = intent.delivered_ns
    assert first == book.now  # 2
    assert book.state.incarnations[block.incarnation].delivered_intent_id == "t#1"  # 3
    assert intent.proof == before  # 4: the barrier stays
    since = len(book.events)
    assert book.mark(block).note == "marked before"
    assert (book.types(since), book.intent()) == ([], intent)


def test_delivered_at_stays_when_it_is_delivered_again() -> None:
    book, _ = delivered()
    first = book.intent().delivered_ns
    book.batch(A, "c1", seen=[])
    again = book.pre("c2", A)
    book.mark(again)
    assert book.intent().delivered_ns == first


@pytest.mark.parametrize("wrong", [{"incarnation": "inc-other"}, {"turn": 7}, {"batch": 7}])
def test_mark_delivered_of_anything_but_the_bound_batch_is_refused(wrong: dict[str, Any]) -> None:
    book, block = blocked()
    names = {"incarnation": block.incarnation, "turn": block.turn, "batch": block.batch, **wrong}
    assert isinstance(book(do.mark_delivered, "t#1", **names), Refused)
    assert book.intent().state is S.MATERIALIZED


# ------------------------------------------------------------------- acknowledgement and recovery


def test_a_later_turn_acknowledges_and_clears_marker_and_proof_at_once() -> None:
    book, block = delivered()
    book.batch(A, "c1", seen=["c1"])
    since = len(book.events)
    assert book.pre("c2", A) == PassThrough("t#1")
    assert book.types(since) == [ev.ACKNOWLEDGED, ev.ADMITTED]
    intent = book.intent()
    assert (intent.state, intent.proof, intent.evidence, intent.recovered) == (S.ACKNOWLEDGED, None, "later_turn", False)
    assert book.state.incarnations[block.incarnation].delivered_intent_id is None


def test_a_stop_is_a_later_turn_too() -> None:
    book, _ = delivered()
    book.batch(A, "c1", seen=["c1"])
    assert book(do.turn_observed, A, "stop").acknowledged == "t#1"


def test_a_lost_mark_is_recovered_with_the_time_of_the_completion() -> None:
    book, _ = blocked()
    book.batch(A, "c1", seen=["c1"])
    completed_ns = book.now
    assert book.pre("c2", A) == PassThrough("t#1")
    assert (book.intent().recovered, book.intent().delivered_ns) == (True, completed_ns)


def test_without_both_pieces_materialized_is_redelivered() -> None:
    book, _ = blocked()
    assert isinstance(book.pre("c2", A), Block)  # no completion
    book, _ = blocked()
    book.batch(A, "c1", seen=["c1"])  # no later turn: the process is gone
    assert isinstance(book.pre("c2", B), Block)
    assert not acknowledged(book)


def test_without_receipts_the_exact_batch_counts_as_the_seed_says() -> None:
    plain = replace(A, capabilities=frozenset({do.BATCH_BOUNDARY, do.STARTUP_DELIVERY}))
    book, _ = delivered(plain)
    book.pre("c2", plain)
    book(do.batch_completed, plain, ["c1"], None)  # not exactly the batch that was blocked
    assert isinstance(book.pre("c3", plain), Block)
    book(do.batch_completed, plain, ["c1", "c2", "c3"], None)
    assert book.pre("c4", plain) == PassThrough("t#1")


def test_receipts_outrank_the_mark() -> None:
    book, _ = delivered()  # marked; and then another hook replaced the text
    book.batch(A, "c1", seen=["c1"], sha=ev.digest("something else"))
    assert isinstance(book.pre("c2", A), Block)
    assert not acknowledged(book)


def test_a_context_that_was_rewritten_before_a_later_turn_proves_nothing() -> None:
    book, _ = delivered()
    book.batch(A, "c1", seen=["c1"])
    book(do.turn_observed, A, "compacted")
    assert isinstance(book.pre("c2", A), Block)
    assert not acknowledged(book)


def test_a_boundary_that_comes_after_the_rewriting_proves_nothing_either() -> None:
    """Found by the state machine: the hook of the boundary was late, and the compaction was reported before it."""
    book, _ = delivered()
    book(do.turn_observed, A, "compacted")
    book.batch(A, "c1", seen=["c1"])
    assert isinstance(book.pre("c2", A), Block)
    assert not acknowledged(book)


def test_a_rewriting_counts_under_a_prompt_that_was_not_reported_too() -> None:
    """Found by the state machine."""
    book, _ = delivered()
    book.batch(A, "c1", seen=["c1"])
    book(do.turn_observed, replace(A, prompt="p7"), "compacted")
    assert book(do.turn_observed, A, "stop").acknowledged is None


def test_a_startup_delivery_that_was_rewritten_before_its_first_turn_starts_anew() -> None:
    book, proof = restarting(launcher=True)
    book(do.accept_startup, B, proof.startup_id)
    assert isinstance(book(do.turn_observed, B, "compacted"), FailClosed)
    assert not acknowledged(book)
    assert book.intent().restarts == 2


def test_duplicate_and_old_batch_boundaries_change_nothing() -> None:
    book, _ = delivered()
    book.batch(A, "c1", seen=["c1"])
    since = len(book.events)
    book.batch(A, "c1", seen=["c1"])
    assert book.types(since) == []
    book.pre("c2", A)
    since = len(book.events)
    book.batch(A, "c1", seen=["c1"])
    assert book.types(since) == []


# ------------------------------------------------------------------- the redelivery table


def test_table_completed_and_not_seen_rebinds_same_bytes_counted_then_restarts() -> None:
    book, _ = delivered()
    for n in range(1, 4):
        book.batch(A, f"c{n}", seen=[])
        again = book.pre(f"c{n + 1}", A)
        assert isinstance(again, Block)
        assert (again.payload, again.batch) == (PAYLOAD, n + 1)
        assert book.intent().redeliveries == n
    book.batch(A, "c4", seen=[])
    since = len(book.events)
    answer = book.pre("c5", A)
    assert isinstance(answer, FailClosed)
    assert "eventlog deliveries show LOG t#1 --startup" in answer.what_to_do
    assert book.types(since) == [ev.RETIRED, ev.RESTART_BOUND]
    assert isinstance(book.intent().proof, RestartStartup)


def test_table_unknown_same_chain_same_prompt_is_a_sibling() -> None:
    book, block = delivered()
    again = book.pre("c9", A)
    assert isinstance(again, Block)
    assert (again.payload, again.batch) == (block.payload, block.batch)


@pytest.mark.parametrize("state", [S.MATERIALIZED, S.DELIVERED])
def test_table_unknown_and_a_new_prompt_retires_without_acknowledgement(state: SyncState) -> None:
    book, _ = delivered() if state is S.DELIVERED else blocked()
    since = len(book.events)
    assert isinstance(book.pre("c2", replace(A, prompt="p2")), FailClosed)
    assert book.types(since) == [ev.PROMPTED, ev.RETIRED, ev.RESTART_BOUND]
    assert book.intent().state is state
    assert isinstance(book.pre("c3", replace(A, prompt="p2")), FailClosed), "its process does not come back"


@pytest.mark.parametrize("launcher", [True, False])
def test_table_unknown_and_a_new_process(launcher: bool) -> None:
    book, _ = delivered()
    book.launcher = launcher
    since = len(book.events)
    answer = book.pre("c2", B)
    assert book.types(since)[:2] == [ev.RETIRED, ev.RESTART_BOUND]
    assert not acknowledged(book)
    if launcher:  # it will start the replacement; this one is not it
        assert isinstance(answer, FailClosed)
        assert "launcher" in answer.what_to_do
    else:  # any new process of the thread may be the replacement
        assert isinstance(answer, Block)
        assert answer.payload == PAYLOAD
        book.batch(B, "c2", seen=["c2"])
        assert book.pre("c3", B) == PassThrough("t#1")


def test_a_reused_conversation_id_is_a_new_process_all_the_same() -> None:
    book, block = delivered()
    answer = book.pre("c2", replace(B, session=A.session))
    assert isinstance(answer, Block)
    assert answer.incarnation != block.incarnation


# ------------------------------------------------------------------- RestartStartup


def test_restart_mints_both_ids_in_the_commit_that_retires() -> None:
    book, proof = restarting()
    assert book.types()[-2:] == [ev.RETIRED, ev.RESTART_BOUND]
    assert book.state.threads["t"].minted == proof.incarnation
    assert book.state.threads["t"].live is None
    assert proof.accepted_ns is None


def test_the_handshake_marks_delivered_and_the_first_echo_acknowledges() -> None:
    book, proof = restarting(launcher=True)
    since = len(book.events)
    answer = book(do.accept_startup, B, proof.startup_id)
    assert isinstance(answer, Done)
    assert book.types(since) == [ev.STARTED, ev.PROMPTED, ev.ACCEPTED]
    assert book.intent().state is S.DELIVERED
    assert book.state.incarnations[proof.incarnation].delivered_intent_id == "t#1"
    assert not acknowledged(book)
    assert book.pre("c1", B) == PassThrough("t#1")
    assert book.intent().evidence == "startup_echo"


def test_a_stop_echoes_too_and_so_does_an_explicit_echo() -> None:
    book, proof = restarting(launcher=True)
    book(do.accept_startup, B, proof.startup_id)
    assert book(do.turn_observed, B, "stop").acknowledged == "t#1"
    book, proof = restarting(launcher=True)
    silent = replace(B, prompt=None)
    book(do.accept_startup, silent, proof.startup_id)
    assert isinstance(book.pre("c1", silent), FailClosed)
    assert isinstance(book.pre("c1", replace(silent, echo="startup-other")), FailClosed)
    assert book.pre("c1", replace(silent, echo=proof.startup_id)) == PassThrough("t#1")


def test_startup_input_invents_no_batch() -> None:
    book, proof = restarting(launcher=True)
    book(do.accept_startup, B, proof.startup_id)
    assert book.state.threads["t"].chains["main"].batch == 0
    assert not isinstance(book.intent().proof, SoftBatch)


def test_another_prompt_does_not_echo() -> None:
    book, proof = restarting(launcher=True)
    book(do.accept_startup, B, proof.startup_id)
    assert isinstance(book.pre("c1", replace(B, prompt="p7")), FailClosed)
    assert not acknowledged(book)
    again = book.intent().proof
    assert isinstance(again, RestartStartup)
    assert again.startup_id != proof.startup_id


def test_a_call_before_the_handshake_is_no_echo() -> None:
    book, proof = restarting(launcher=True)
    book(do.start_incarnation, B, startup_id=proof.startup_id)
    assert isinstance(book.pre("c1", replace(B, echo=proof.startup_id)), FailClosed)
    assert not acknowledged(book)


def test_a_crash_before_the_handshake_retires_the_attempt_and_retries_with_new_ids() -> None:
    book, first = restarting(launcher=True)
    book(do.start_incarnation, B, startup_id=first.startup_id)
    since = len(book.events)
    book(do.bind_restart, "t", "it died before the handshake")
    assert book.types(since) == [ev.RETIRED, ev.RESTART_BOUND]
    second = book.intent().proof
    assert isinstance(second, RestartStartup)
    assert second.attempt == first.attempt + 1
    assert {second.incarnation, second.startup_id}.isdisjoint({first.incarnation, first.startup_id})
    refused = book(do.accept_startup, replace(B, process="pid-3"), first.startup_id)
    assert isinstance(refused, Refused)
    assert "void" in refused.reason
    assert isinstance(book(do.accept_startup, replace(B, process="pid-3"), second.startup_id), Done)


def test_a_startup_id_is_good_for_one_process() -> None:
    book, proof = restarting(launcher=True)
    book(do.accept_startup, B, proof.startup_id)
    assert isinstance(book(do.accept_startup, replace(B, process="pid-3"), proof.startup_id), Refused)
    assert book(do.accept_startup, B, proof.startup_id).note == "accepted before"
    assert isinstance(book(do.accept_startup, replace(B, prompt="p5"), proof.startup_id), Refused)


def test_the_retired_process_cannot_be_the_replacement() -> None:
    book, proof = restarting()
    assert isinstance(book(do.accept_startup, replace(A, prompt="px"), proof.startup_id), Refused)


def test_attempts_are_bounded_then_it_is_loud_and_only_a_person_leaves_it() -> None:
    book, _ = restarting(launcher=True)
    for _ in range(5):
        book(do.bind_restart, "t", "it died before the handshake")
    assert book.intent().state is S.RECOVERY_REQUIRED
    assert isinstance(book(do.bind_restart, "t", "again"), Refused)
    answer = book.pre("c1", replace(B, process="pid-9"))
    assert isinstance(answer, FailClosed)
    assert "eventlog deliveries resolve LOG t#1" in answer.what_to_do
    assert isinstance(book(do.resolve, "t#1", "retry", reason="", actor="ann", seen=None), Refused)
    assert isinstance(book(do.resolve, "t#1", "retry", reason="r", actor="ann", seen=1), Refused)
    assert isinstance(book(do.resolve, "t#1", "retry", reason="r", actor="ann", seen=book.intent().version), Done)
    block = book.pre("c1", replace(B, process="pid-9"))
    assert isinstance(block, Block)
    assert (block.payload, acknowledged(book)) == (PAYLOAD, False)


def test_what_was_delivered_once_keeps_its_time_when_a_person_sends_it_round_again() -> None:
    book, _ = restarting(launcher=True)
    first = book.intent().delivered_ns
    for _ in range(5):
        book(do.bind_restart, "t", "it died before the handshake")
    book(do.resolve, "t#1", "retry", reason="r", actor="ann", seen=None)
    book.pre("c1", B)
    book.batch(B, "c1", seen=["c1"])
    assert book.pre("c2", B) == PassThrough("t#1")
    assert (book.intent().delivered_ns, book.intent().recovered) == (first, True)


def test_a_person_may_drop_what_waits_and_that_is_no_acknowledgement() -> None:
    book, _ = delivered()
    book(do.resolve, "t#1", "drop", reason="told her myself", actor="ann", seen=None)
    assert book.intent().state is S.SUPERSEDED
    assert book.intent().acknowledged_ns is None
    assert book.pre("c2", A) == PassThrough()


def test_a_process_that_proves_nothing_is_never_guessed_about() -> None:
    no_batches = replace(A, capabilities=frozenset({do.STARTUP_DELIVERY}))
    book = materialized(no_batches)
    answer = book.pre("c1", no_batches)
    assert isinstance(answer, FailClosed)
    assert isinstance(book.intent().proof, RestartStartup)
    nothing = replace(A, capabilities=frozenset())
    book = materialized(nothing)
    assert isinstance(book.pre("c1", nothing), FailClosed)
    assert book.intent().state is S.RECOVERY_REQUIRED


def test_a_hook_of_an_earlier_prompt_or_a_retired_process_fails_closed() -> None:
    book, _ = delivered()
    book.batch(A, "c1", seen=["c1"])
    book(do.turn_observed, replace(A, prompt="p2"), "prompt")
    assert isinstance(book.pre("orphan", A), FailClosed)
    assert not acknowledged(book)
    assert book.pre("c2", replace(A, prompt="p2")) == PassThrough("t#1")


def test_a_call_of_a_prompt_that_was_not_reported_is_no_later_turn() -> None:
    """It may be a hook of an interrupted prompt that outlived its batch (found by the state machine)."""
    book, _ = delivered()
    book.batch(A, "c1", seen=["c1"])
    assert isinstance(book.pre("orphan", replace(A, prompt="p0")), Block)
    assert not acknowledged(book)


def test_two_processes_of_one_thread_take_turns_while_nothing_waits() -> None:
    book = Book()
    assert book.pre("a1", A) == PassThrough()
    assert book.pre("b1", B) == PassThrough()
    assert book.pre("a2", A) == PassThrough()
    assert sum(one.presence.value == "live" for one in book.state.incarnations.values()) == 1


# ------------------------------------------------------------------- coalescing


def test_coalescing_adds_operations_and_a_base_only_before_materialization() -> None:
    book = Book()
    book.detect("op-1", "b1")
    assert book.detect("op-2", "b2").note == "coalesced"
    assert book.detect("op-2", "b2").note == "known"
    book.pre("c1", A)
    book.detect("op-3", "b3")
    assert (book.intent().triggers, book.intent().base) == (("op-1", "op-2", "op-3"), "b3")
    refused = book.materialize(base="b2")
    assert isinstance(refused, Refused)
    assert refused.moved, "the base moved under the reconciler"
    assert isinstance(book.materialize(base="b3"), Done)
    before = book.intent()
    assert book.detect("op-4", "b4").intent.id == "t#2", "later work gets a new intent"
    assert isinstance(book(do.coalesce, "t#1", base="b5", triggers=["op-5"]), Refused)
    assert book.intent() == before


def test_a_second_result_cannot_change_the_payload() -> None:
    book = materialized()
    assert book.materialize().note == "materialized before"
    assert isinstance(book.materialize(payload="another"), Refused)
    assert book.intent().payload == PAYLOAD


def test_the_reconciler_may_die_and_the_restart_finds_reconciling() -> None:
    book = Book()
    book.detect()
    book.pre("c1", A)
    assert book.intent().state is S.RECONCILING
    answer = book.pre("d1", B)
    assert isinstance(answer, Reconcile)
    assert isinstance(book.materialize(), Done)
    assert isinstance(book.pre("d1", B), Block)


def test_a_result_that_comes_when_its_batch_is_over_goes_to_the_next_one() -> None:
    book = Book()
    book.detect()
    book.pre("c1", A)
    book.batch(A, "c1")  # the hook failed closed at its deadline
    book.materialize()
    block = book.pre("c2", A)
    assert isinstance(block, Block)
    assert book.intent().redeliveries == 0
    book.batch(A, "c2", seen=["c2"])
    assert book.pre("c3", A) == PassThrough("t#1")


@pytest.mark.parametrize(("command", "state"), [(do.recovery_required, S.RECOVERY_REQUIRED), (do.topology_diverged, S.TOPOLOGY_DIVERGED)])
def test_what_cannot_be_reconciled_is_loud_and_a_person_sends_it_round_again(command: Callable[..., Any], state: SyncState) -> None:
    book = Book()
    book.detect()
    book.pre("c1", A)
    assert isinstance(book(command, "t#1", "dirty"), Done)
    assert book.intent().state is state
    assert isinstance(book.pre("c2", A), FailClosed)
    book(do.resolve, "t#1", "retry", reason="cleaned", actor="ann", seen=None)
    assert isinstance(book.pre("c3", A), Reconcile)


def test_superseding_is_for_what_nobody_can_have_read() -> None:
    book = Book()
    book.detect()
    assert isinstance(book(do.supersede, "t#1", "reverted"), Done)
    assert book.pre("c1", A) == PassThrough()
    assert isinstance(materialized()(do.supersede, "t#1", "reverted"), Refused)


# ------------------------------------------------------------------- invalid combinations cannot be built

Forge = Callable[[Book], Event]
INC = "inc-r1002-1"


def _here(book: Book) -> dict[str, Any]:
    proof = book.intent().proof
    assert isinstance(proof, SoftBatch)
    return {"incarnation": proof.incarnation, "turn": proof.turn, "batch": proof.batch}


def _sync(type_: str, **data: Any) -> Forge:
    return lambda book: Event(type_, data, "t#1")


def _ack(book: Book, **changes: Any) -> Event:
    data = {"evidence": "later_turn", "turn": 2, "call": "c2", "recovered": False, "delivered_ns": book.intent().delivered_ns}
    return Event(ev.ACKNOWLEDGED, {**data, "incarnation": book.state.threads["t"].live, **changes}, "t#1")


def _outbox(book: Book, **changes: Any) -> Event:
    good = ev.materialized("t#1", base="b1", operation="r", commit="c", payload="p", anchor="a", prepared_ns=1)
    return Event(good.type, {name: value for name, value in {**good.data, **changes}.items() if value is not None}, "t#1")


def reconciling() -> Book:
    book = Book()
    book.detect()
    book.pre("c1", A)
    return book


def completed() -> Book:
    book, _ = delivered()
    book.batch(A, "c1", seen=["c1"])
    return book


FORBIDDEN: list[tuple[str, Callable[[], Book], Forge]] = [
    ("materialized before any block", lambda: _with(Book(), "detect"), _outbox),
    *[
        (f"materialized without {name}", reconciling, lambda book, name=name: _outbox(book, **{name: None}))  # type: ignore[misc]
        for name in ("operation", "commit", "payload", "sha256", "anchor", "prepared_ns")
    ],
    ("a payload with another digest", reconciling, lambda book: _outbox(book, payload="drift")),
    ("a result for another base", reconciling, lambda book: _outbox(book, base="b0")),
    ("a second payload", materialized, _outbox),
    ("coalescing into a prepared intent", materialized, _sync(ev.COALESCED, base="b2", triggers=["op-2"])),
    ("superseding a prepared intent", materialized, _sync(ev.SUPERSEDED, reason="r")),
    ("delivered before it is materialized", reconciling, lambda book: Event(ev.MARKED, _here(book), "t#1")),
    ("delivered to another batch", materialized, lambda book: Event(ev.MARKED, {**_here(book), "batch": 9}, "t#1")),
    ("delivered in another turn", materialized, lambda book: Event(ev.MARKED, {**_here(book), "turn": 9}, "t#1")),
    ("completed with foreign calls", materialized, lambda book: ev.completed("t#1", calls=["x"], seen=["x"], **_here(book))),
    ("completed twice", completed, lambda book: ev.completed("t#1", calls=["c1"], seen=["c1"], **_here(book))),
    ("acknowledged without completion", lambda: delivered()[0], _ack),
    ("acknowledged in the same turn", completed, lambda book: _ack(book, turn=1)),
    ("acknowledged by a sibling", completed, lambda book: _ack(book, call="c1")),
    ("acknowledged by another incarnation", completed, lambda book: _ack(book, incarnation="inc-x")),
    ("acknowledged with an invented time", completed, lambda book: _ack(book, delivered_ns=1)),
    ("acknowledged as recovered though marked", completed, lambda book: _ack(book, recovered=True)),
    ("acknowledged by an echo of nothing", completed, lambda book: _ack(book, evidence="startup_echo")),
    ("acknowledged before acceptance", lambda: _presented(), lambda book: _ack(book, evidence="startup_echo")),
    ("a second batch while the first is not over", materialized, lambda book: _block_event(book, 2)),
    ("a redelivery counted twice", completed, lambda book: _block_event(book, 2, redeliveries=2)),
    ("a restart while the old incarnation lives", materialized, lambda book: _restart(book)),
    ("a restart before there is a payload", reconciling, lambda book: _restart(book)),
    ("a startup id that was used before", lambda: _retired_attempt(), lambda book: _restart(book, startup_id=_first_startup(book))),
    ("an attempt that is skipped", lambda: _retired_attempt(), lambda book: _restart(book, attempt=7)),
    ("a second live incarnation", materialized, lambda book: _start(book, "inc-x", "pid-7")),
    ("a process beside the minted one", lambda: restarting()[0], lambda book: _start(book, "inc-x", "pid-7")),
    ("a barred process that comes back", lambda: _retired_attempt(), lambda book: _start(book, "inc-x", "pid-1")),
    (
        "an incarnation id that was used before",
        lambda: _retired_attempt(),
        lambda book: _start(book, min(book.state.incarnations), "pid-7"),
    ),
    ("a batch let through while an intent waits", lambda: _with(_passed(), "detect"), lambda book: _admit_event(book, "pass", batch=2)),
    ("another decision in an open batch", materialized, lambda book: _admit_event(book, "pass", batch=1)),
    ("a call of a closed batch", completed, lambda book: _admit_event(book, "pass", call="c1", batch=2)),
    ("an intent out of order", lambda: delivered()[0], lambda book: ev.detected("t#5", thread="t", base="b", triggers=["o"])),
    ("an intent without a trigger", lambda: delivered()[0], lambda book: ev.detected("t#2", thread="t", base="b", triggers=[])),
    ("an intent in a foreign stream", Book, lambda book: ev.detected("u#1", thread="t", base="b", triggers=["o"])),
    ("a younger intent before the older", lambda: _with(delivered()[0], "detect2"), lambda book: _block_event(book, 2, intent="t#2")),
    ("anything after the acknowledgement", lambda: _acked(), lambda book: ev.resolved("t#1", "drop", reason="r", actor="a", seen=1)),
    ("a retry of what is not loud", materialized, lambda book: ev.resolved("t#1", "retry", reason="r", actor="a", seen=1)),
    ("an unknown decision of a person", materialized, lambda book: ev.resolved("t#1", "ack", reason="r", actor="a", seen=1)),
]


def _with(book: Book, what: str) -> Book:
    book.detect(*{"detect": (), "detect2": ("op-2", "b2")}[what])
    return book


def _passed() -> Book:
    book = Book()
    book.pre("c1", A)
    book.batch(A, "c1")
    return book


def _acked() -> Book:
    book = completed()
    book.pre("c2", A)
    return book


def _presented() -> Book:
    book, proof = restarting()
    book(do.start_incarnation, B, startup_id=proof.startup_id)
    return book


def _retired_attempt() -> Book:
    book, proof = restarting()
    book.fold([ev.retired("t", incarnation=proof.incarnation, reason="r", barred=False)])
    return book


def _first_startup(book: Book) -> str:
    return next(iter(book.state.startups))


def _restart(book: Book, **changes: Any) -> Event:
    fields = {"incarnation": "inc-new", "startup_id": "startup-new", "attempt": book.intent().restarts + 1, "reason": "r", **changes}
    return ev.restart_bound("t#1", **fields)


def _start(book: Book, incarnation: str, process: str) -> Event:
    return ev.started("t", incarnation=incarnation, process=process, session=None, capabilities=[])


def _block_event(book: Book, batch: int, intent: str = "t#1", redeliveries: int = 0) -> Event:
    chain = book.state.threads["t"].chains["main"]
    fields = {"turn": chain.turn, "batch": batch, "redeliveries": redeliveries, "prompt": None}
    return ev.blocked(intent, incarnation=str(book.state.threads["t"].live), chain="main", **fields)  # type: ignore[arg-type]


def _admit_event(book: Book, decision: Any, batch: int, call: str = "c8") -> Event:
    thread = book.state.threads["t"]
    turn = thread.chains["main"].turn
    return ev.admitted("t", incarnation=str(thread.live), chain="main", turn=turn, batch=batch, call=call, decision=decision)


@pytest.mark.parametrize(("given", "forge"), [row[1:] for row in FORBIDDEN], ids=[row[0] for row in FORBIDDEN])
def test_forbidden_states_are_refused_with_the_seq_that_would_create_them(given: Callable[[], Book], forge: Forge, tmp_path: Any) -> None:
    book = given()
    event = forge(book)
    before = copy.deepcopy(book.state)
    with pytest.raises(ImpossibleTransition) as refused:
        book.fold([event])
    assert orjson.dumps(DELIVERIES.dump(book.state)) == orjson.dumps(DELIVERIES.dump(before)), "it changed something before it refused"
    with EventLog.open(tmp_path / "log") as log:
        for one in book.events:
            data = one.data
            if one.type == ev.ACKNOWLEDGED:  # the times of this log are its own
                data = {**data, "delivered_ns": fold(DELIVERIES, log).intents[one.stream].delivered_ns}
            log.commit(Event(one.type, data, one.stream))
        log.commit(event)
        with pytest.raises(FoldError, match=str(len(book.events) + 1)) as stopped:
            fold(DELIVERIES, log)
    assert (stopped.value.seq, stopped.value.type) == (len(book.events) + 1, event.type)
    assert str(refused.value).split()[0] in str(stopped.value)


def test_a_dumped_state_loads_as_the_same_state() -> None:
    for book in (reconciling(), completed(), _presented(), _acked()):
        dumped = orjson.dumps(DELIVERIES.dump(book.state))
        assert DELIVERIES.load(orjson.loads(dumped)) == book.state
        assert orjson.dumps(DELIVERIES.dump(copy.deepcopy(book.state))) == dumped
