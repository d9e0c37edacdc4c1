"""`growth`: every page of the console over stores of growing size, with more and more of their calls open: time, statements, rows, bytes."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping
from urllib.parse import urlencode
from uuid import uuid4

import httpx
import psycopg
from psycopg import sql

from actions import queries
from actions.records import ActionRef
from bench.beside import measure_admin
from bench.chain import fill
from bench.crowd import measure_crowd, measure_fan_out, row_of
from bench.ground import COLLECTION, TABLE, Ground, laid_beside
from bench.inside import Inside
from bench.memory import WEB_MB, pss_mb
from bench.overhear import measure_floor, overhear
from bench.pages import USER, Console, require_ok, served
from bench.plan import Plan
from bench.report import Goal, Report, Row, make_row, measure
from bench.shape import TALKER, Life, Shape, in_doubt, lives
from local.postgres import Postgres
from local.processes import ServerError

FIRST, SETTLE = "queue, first page", "settle, through the API"
PIECE = {"HX-Request": "true", "HX-Target": "queue"}
MOST_GROWTH, MOST_OF_FLOOR = 1.3, 3.0
ENTRIES = 20_000
SPARE_WARM_UP = 3
DEAD_ROWS = 2_000


def bench_growth(ground: Ground, plan: Plan, report: Report) -> None:
    """Each size in a database and under a web process of its own; the calls that are open come on top of it, few and then more."""
    for size in plan.sizes:
        shape = Shape(agents=max(20, size // 20), actions=size, open_actions=0, turns=size // 10, prefix="past")
        ground.tell(f"  {size:,} actions")
        with laid_beside(ground, f"growth_{size}", shape) as at:
            at.add([TALKER])
            with at.store() as store:
                fill(at.url, store.read_head(), min(ENTRIES, size // 4))
            with (
                served(at, f"console_{size}") as console,
                Inside(console.environment, log=at.log.with_name("inside.log")) as inside,
            ):
                at_rest = pss_mb(console.pid)
                _measure_size(at, console, inside, plan, report, size)
                if size == plan.sizes[-1]:
                    _measure_most(at, console, inside, plan, report, at_rest)
    _judge(plan, report)


def _measure_size(at: Ground, console: Console, inside: Inside, plan: Plan, report: Report, size: int) -> None:
    there = 0
    for step, open_calls in enumerate(plan.opens):
        at.add(_opened(open_calls - there, f"open{step}"))
        there = open_calls
        at.tell(f"  {size:,} actions, {open_calls:,} open: pages, settles")
        measured = Place(at, console, inside, plan, report, size, open_calls)
        measured.pages()
        measured.settle()
        if step == min(1, len(plan.opens) - 1):
            at.tell("  without our index, before a vacuum, beside Django's admin")
            measured.without_index()
            measured.with_dead_rows()
            measure_admin(at, report, size, open_calls, times=plan.pages)


class Place:
    """One store of this size with so many open: everything that is measured there."""

    def __init__(
        self, at: Ground, console: Console, inside: Inside, plan: Plan, report: Report, size: int, open_calls: int
    ) -> None:
        self._at, self._console, self._inside, self._plan, self._report = at, console, inside, plan, report
        self._size, self._open_calls = size, open_calls
        self._server = Postgres.from_url(at.url)

    def pages(self) -> None:
        action = self._first_in_doubt()
        deep = f"/?{urlencode({'cursor': self._middle()})}"
        self._page(FIRST, "/")
        self._page("queue, its rows by htmx", "/", headers=PIECE)
        self._page("queue, a page in the middle", deep)
        self._page("queue, of a tool", "/?tool=send_email")
        self._page("queue, with a text", "/?text=refund")
        views = self._inside.ask("make_views", user=USER)
        self._page("queue, with the counts of 3 views", "/")
        self._inside.ask("remove_views", user=USER, numbers=views)
        self._page("an action", f"/actions/main/{action.agent}/{action.seq}/")
        self._page("an agent with 5,000 turns", f"/agents/main/{TALKER.agent}/")
        self._page("the history", "/history/")

    def settle(self) -> None:
        """Of agents that come on top, so that as many stay open. Beside it the store's own transaction, without the console."""
        from bench.settle import settle_through_us

        times = self._plan.pages + SPARE_WARM_UP + 1
        spare = in_doubt(2 * times, f"spare{self._open_calls}")
        self._at.add(spare)
        with self._at.store() as store:
            digests = {life.agent: queries.get_action(store, ActionRef("main", life.agent, 2)).digest for life in spare}
            bare = iter(spare[times:])

            def settle_bare() -> None:
                agent = next(bare).agent
                settle_through_us(store, ActionRef("main", agent, 2), digests[agent])

            floor = measure(settle_bare, times=times - SPARE_WARM_UP, warm_up=SPARE_WARM_UP)
        theirs = iter(spare[:times])

        def decide() -> httpx.Response:
            agent = next(theirs).agent
            body = {"outcome": "done", "reason": "found in the Sent folder", "decision_id": uuid4().hex, "seen": digests[agent]}
            answer = self._console.program.post(f"/api/v1/actions/main/{agent}/2/decision", json=body)
            if answer.status_code != httpx.codes.CREATED:
                raise ServerError(f"a decision about {agent} was answered {answer.status_code}: {answer.text[:200]}")
            return answer

        samples = measure(decide, times=self._plan.pages, warm_up=SPARE_WARM_UP)
        self._keep(SETTLE, samples, decide, floor=statistics.median(floor), note="bare: the store's own transaction")

    def without_index(self) -> None:
        """Recall's own index alone: what a team has that has not run prepare_store --index."""
        with psycopg.connect(self._at.url, autocommit=True) as connection:
            found = connection.execute(
                "SELECT quote_ident(schemaname) || '.' || quote_ident(indexname), indexdef FROM pg_indexes "
                "WHERE tablename = %s AND indexdef LIKE '%%WHERE%%started%%'",
                [COLLECTION],
            ).fetchone()
            if found is None:
                raise ServerError("growth: the partial index of open actions is not there")
            connection.execute(b"DROP INDEX " + found[0].encode())
            self._page(f"{FIRST}, without our index", "/", is_judged=False)
            connection.execute(found[1].encode())
        self._at.vacuum()

    def with_dead_rows(self) -> None:
        """As many calls as a busy hour closes, before any vacuum: the index still points at what they were."""
        gone = in_doubt(min(DEAD_ROWS, self._size // 4), f"gone{self._open_calls}")
        with psycopg.connect(self._at.url, autocommit=True) as connection:
            connection.execute(sql.SQL("ALTER TABLE {} SET (autovacuum_enabled = off)").format(TABLE))
            self._at.add(gone)
            connection.execute(
                sql.SQL(
                    "UPDATE {} SET metadata = metadata || %s::jsonb WHERE id LIKE %s AND metadata->>'status' = 'unknown'"
                ).format(TABLE),
                ['{"status": "done"}', f"gone{self._open_calls}-%"],
            )
            self._page(f"{FIRST}, before a vacuum", "/", is_judged=False)
            connection.execute(sql.SQL("ALTER TABLE {} RESET (autovacuum_enabled)").format(TABLE))
        self._at.vacuum()

    def _page(self, name: str, path: str, *, headers: Mapping[str, str] | None = None, is_judged: bool = True) -> None:
        def fetch() -> httpx.Response:
            return self._console.browser.get(path, headers=headers)

        require_ok(fetch())
        row = self._keep(name, measure(fetch, times=self._plan.pages, warm_up=1), fetch)
        judged_at = self._plan.sizes[-1], self._plan.opens[min(1, len(self._plan.opens) - 1)]
        if is_judged and (self._size, self._open_calls) == judged_at:
            self._judge_page(row, path, headers or {})

    def _keep(
        self,
        name: str,
        samples: list[float],
        work: Callable[[], httpx.Response],
        *,
        floor: float | None = None,
        note: str = "",
    ) -> Row:
        answers: list[httpx.Response] = []
        told = overhear(self._server, self._at.log, lambda: answers.append(work()))
        if floor is None:
            bare = measure_floor(self._server, told.asked, times=self._plan.pages)
            floor = statistics.median(bare)
        scans = [table for table in told.full_scans if table == COLLECTION]
        notes = [note, *([f"{len(scans)} full scans of the records"] if scans else [])]
        row = make_row(
            "growth",
            name,
            samples,
            round_trips=told.statements,
            rows_read=told.rows,
            size=answers[0].num_bytes_downloaded,
            floor=floor,
            actions=self._size,
            open_calls=self._open_calls,
            note="; ".join(filter(None, notes)),
        )
        self._report.rows.append(row)
        return row

    def _judge_page(self, row: Row, path: str, headers: Mapping[str, str]) -> None:
        """The page in a process without HTTP, with the time that its templates take: together with its statements, the floor of the page."""
        told = self._inside.ask("time_template", user=USER, path=path, times=self._plan.pages, headers=dict(headers))
        drawn = statistics.median(told["template"])
        self._report.rows += [
            make_row("templates", f"{row.name}: the whole, without HTTP", told["whole"]),
            make_row("templates", f"{row.name}: its templates alone", told["template"]),
        ]
        goal = MOST_OF_FLOOR * (row.floor or 0) + drawn
        self._report.goals.append(
            Goal(
                name=f"growth: {row.name} at {row.actions:,}/{row.open_calls:,}, p50",
                wanted=f"<= {goal:.0f} ms (3 x {row.floor:.1f} bare + {drawn:.0f} templates)",
                found=f"{row.p50:.0f} ms",
                is_met=row.p50 <= goal,
            )
        )

    def _first_in_doubt(self) -> ActionRef:
        with self._at.store() as store:
            return queries.list_actions([store], queries.IN_DOUBT, limit=1).items[0].ref

    def _middle(self) -> str:
        """The cursor of the page in the middle of the list, as somebody who turned pages would have it."""
        found = re.search(r'href="[^"]*[?&](?:amp;)?cursor=([^"&]+)"', self._console.browser.get("/").text)
        with self._at.store() as store:
            page = queries.list_actions([store], queries.IN_DOUBT, limit=queries.MAX_LIMIT)
            left = page.total // 2
            while page.next and left > queries.MAX_LIMIT:
                page = queries.list_actions([store], queries.IN_DOUBT, limit=queries.MAX_LIMIT, cursor=page.next)
                left -= queries.MAX_LIMIT
            here = queries.list_actions([store], queries.IN_DOUBT, limit=max(1, min(left, queries.MAX_LIMIT)))
        return page.next or here.next or (found[1] if found else "")


def _opened(count: int, prefix: str) -> list[Life]:
    return lives(Shape(agents=max(1, count), actions=2 * count, open_actions=count, turns=3 * count, prefix=prefix))


def _measure_most(at: Ground, console: Console, inside: Inside, plan: Plan, report: Report, at_rest: float) -> None:
    """In the largest store with the most open: what many do at once, and what workers do."""
    at.tell("  many at once: browsers, operators, a batch, a sweep")
    measure_fan_out(at, console, report, browsers=plan.browsers, fetchers=plan.fetchers, times=plan.changes)
    measure_crowd(at, console, inside, report, calls=plan.crowd, seconds=plan.crowd_s)
    _bulk(at, inside, plan, report)
    _sweep(inside, plan, report)
    after = pss_mb(console.pid)
    report.rows += [
        row_of("the web process at rest, MB", at_rest, unit="MB"),
        row_of("the web process after all of growth's work, MB", after, unit="MB"),
    ]
    report.goals.append(
        Goal(name="memory: a web process after the run", wanted=f"< {WEB_MB} MB", found=f"{after:.0f} MB", is_met=after < WEB_MB)
    )


def _bulk(at: Ground, inside: Inside, plan: Plan, report: Report) -> None:
    agents = in_doubt(plan.bulk, "bulk")
    at.add(agents)
    told = inside.ask("decide_batch", user=USER, refs=[(life.agent, 2) for life in agents])
    if told["written"] != plan.bulk:
        raise ServerError(f"bulk: {told['written']} of {plan.bulk} were written")
    each = told["whole_ms"] / plan.bulk
    report.rows += [
        make_row("bulk", f"preview of {plan.bulk}", [told["preview_ms"]]),
        make_row(
            "bulk",
            f"deciding {plan.bulk}, one worker",
            [told["whole_ms"]],
            note=f"{each:.1f} ms and {told['statements_an_item']:.0f} statements of the console's database for each",
        ),
    ]


def _sweep(inside: Inside, plan: Plan, report: Report) -> None:
    inside.ask("prepare_asking", user=USER, tool="send_email")
    told = inside.ask("sweep", most=plan.sweep)
    note = f"{sum(told['each']) / 1000:.1f} s in all, {told['verdicts']:,} verdicts kept; the resolver answers at once"
    report.rows += [
        make_row("sweep", f"finding {told['found']:,} calls to ask about", [told["discover_ms"]]),
        make_row("sweep", "again, where nothing has changed", [told["again_ms"]]),
        make_row("sweep", f"asking about {len(told['each']):,} of them, each", told["each"], note=note),
    ]


def _judge(plan: Plan, report: Report) -> None:
    """What may not depend on how much has happened before: the same page, as many open, in the largest store and in the smallest."""
    open_calls = plan.opens[min(1, len(plan.opens) - 1)]
    for name in (FIRST, f"{FIRST}, without our index", f"{FIRST}, before a vacuum", SETTLE):
        at = {
            row.actions: row for row in report.rows if row.bench == "growth" and row.name == name and row.open_calls == open_calls
        }
        few, many = at[plan.sizes[0]], at[plan.sizes[-1]]
        ratio = many.p50 / few.p50
        if name in (FIRST, SETTLE):
            report.goals.append(
                Goal(
                    name=f"growth: {name}, {plan.sizes[-1]:,} : {plan.sizes[0]:,} actions with {open_calls:,} open",
                    wanted=f"<= {MOST_GROWTH}",
                    found=f"{ratio:.2f} (rows read {few.rows_read:,} and {many.rows_read:,})",
                    is_met=ratio <= MOST_GROWTH,
                )
            )
