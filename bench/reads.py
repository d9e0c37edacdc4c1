"""`queue` and `action`: what the console's pages read, over all agents and for one."""

from __future__ import annotations

from collections.abc import Callable

from actions import queries
from actions.queries import ActionFilter, ActionItem
from actions.records import ActionClass, ActionState, ActionStatus
from actions.store.base import ActionStore
from bench.ground import Ground
from bench.plan import Plan
from bench.report import Goal, Report, clock, make_row, measure

PAGE = 50
MOST_TRIPS = 3


def bench_queue(ground: Ground, plan: Plan, report: Report) -> None:
    """The list of open actions: its first page, a later one, and with filters."""
    with ground.store() as store:
        first = queries.list_actions([store], ActionFilter(), limit=PAGE)
    views: dict[str, Callable[[ActionStore], object]] = {
        "first page": lambda store: queries.list_actions([store], ActionFilter(), limit=PAGE),
        "second page": lambda store: queries.list_actions([store], ActionFilter(), limit=PAGE, cursor=first.next),
        "external, interrupted or unknown": lambda store: queries.list_actions([store], in_doubt(), limit=PAGE),
        "one agent": lambda store: queries.list_actions(
            [store], ActionFilter(agents=frozenset({first.items[0].agent})), limit=PAGE
        ),
        "what a watcher asks": lambda store: store.read_watch(),
    }
    for name, view in views.items():
        _measure_read(ground, plan, report, "queue", name, view)
    anew = [_read_anew(ground, views["first page"]) for _ in range(plan.reads)]
    report.rows.append(make_row("queue", "first page, the first time", anew, note="no record decoded before"))
    witnessed = ground.witness(views["first page"])
    trips = len(witnessed.statements)
    report.goals.append(
        Goal(name="queue: store round trips", wanted=f"<= {MOST_TRIPS}", found=f"{trips}", is_met=trips <= MOST_TRIPS)
    )
    scans = witnessed.full_scans
    report.goals.append(Goal(name="queue: full scans of the records", wanted="0", found=f"{scans}", is_met=scans == 0))
    open_calls = ground.shape.open_actions
    report.goals.append(
        Goal(
            name="queue: open calls listed", wanted=f"{open_calls:,}", found=f"{first.total:,}", is_met=first.total == open_calls
        )
    )


def bench_action(ground: Ground, plan: Plan, report: Report) -> None:
    """One action with whole arguments, its result, and its agent's page."""
    with ground.store() as store:
        items = queries.list_actions([store], ActionFilter(), limit=200).items
        item = next(item for item in items if item.action and not item.action.args_ref)
        overflown = next((item for item in items if item.action and item.action.args_ref), item)
        closed = _closed_of(store, item)
    views: dict[str, Callable[[ActionStore], object]] = {
        "one action": lambda store: queries.get_action(store, item.ref),
        "one with arguments over 8 kB": lambda store: queries.get_action(store, overflown.ref),
        "a closed one and its result": lambda store: _with_result(store, closed),
        "its agent's page": lambda store: queries.read_agent(store, item.agent),
        "its audit entries": lambda store: store.list_entries(limit=PAGE, agent=item.agent, seq=item.seq),
    }
    for name, view in views.items():
        _measure_read(ground, plan, report, "action", name, view)


def in_doubt() -> ActionFilter:
    return ActionFilter(
        classes=frozenset({ActionClass.EXTERNAL}), states=frozenset({ActionState.INTERRUPTED, ActionState.UNKNOWN})
    )


def _closed_of(store: ActionStore, item: ActionItem) -> ActionItem:
    done = store.read_actions([ActionStatus.DONE], limit=1, agent=item.agent).readings
    return queries.make_item(store, done[0], {}) if done else item


def _with_result(store: ActionStore, item: ActionItem) -> str:
    shown = queries.get_action(store, item.ref)
    return queries.read_result(store, shown.action) if shown.action else ""


def _read_anew(ground: Ground, view: Callable[[ActionStore], object]) -> float:
    """Milliseconds of a store's first read."""
    with ground.new_store() as store:
        return clock(lambda: view(store))


def _measure_read(
    ground: Ground, plan: Plan, report: Report, bench: str, name: str, view: Callable[[ActionStore], object]
) -> None:
    witnessed = ground.witness(view)
    with ground.store() as store:
        samples = measure(lambda: view(store), times=plan.reads)
    note = f"{witnessed.full_scans} full scans" if witnessed.full_scans else ""
    report.rows.append(make_row(bench, name, samples, round_trips=len(witnessed.statements), note=note))
