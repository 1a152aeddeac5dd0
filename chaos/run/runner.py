"""Runs an experiment: load, watching, the Chaos Toolkit, figures, verdict, report; once or several times.

The Chaos Toolkit carries the method out in this process; what it makes of it is in its journal, which ``judge.py``
reads. Faults end with this process whatever happens to it (``chaos/inject.py``).
"""

from __future__ import annotations

import copy
import logging
import os
import secrets
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaoslib.configuration import load_configuration
from chaoslib.exceptions import ActivityFailed, ChaosException
from chaoslib.experiment import ensure_experiment_is_valid, run_experiment
from chaoslib.substitution import substitute
from chaoslib.types import Strategy

from chaos import actions, inject, load, places, probes, recover, timeline, web
from chaos.fault import Refused
from chaos.place import Place
from chaos.run import audit, grafana, judge, report
from chaos.run.figures import CAPACITY_SPAN, IN_A_ROW, Figures, Seen, compute
from chaos.run.judge import Verdict
from chaos.run.plan import Experiment, PlanError
from chaos.run.report import Outcome
from chaos.run.screen import Screen
from chaos.run.series import Page
from chaos.run.timeline import Watch

_DATA = 90.0  # seconds for Prometheus to have what the experiment asks of it
_WELL = 180.0  # seconds for the fleet to be itself again between two injections
_OPEN = 15.0  # seconds for requests of the run that are still open
_LATE = 0.05  # share of requests that the load may send later than half a window
_USAGE = 2


class Unusable(Exception):
    """Wrong usage, or nothing can be done here; the message names the option and the cure. Nothing was done."""


@dataclass
class Options:
    """place: as ``--place``. rate: requests a second, None: the experiment's. target: of its fault, "": the experiment's.

    addresses: of router, admin, prometheus, alertmanager, where the place does not say them.
    """

    place: str = "local"
    repeat: int = 1
    rate: float | None = None
    target: str = ""
    grafana: str = ""
    grafana_token: str = ""
    addresses: dict[str, str] = field(default_factory=dict)
    quiet: bool = False


def runs_folder() -> Path:
    """Where runs are kept: ``chaos/runs`` in ``$EXASERVE_HOME``."""
    return recover.folder().parent / "runs"


def run(experiment: Experiment, options: Options) -> list[Outcome]:
    """Run it ``repeat`` times, write the reports, return what came of each. Raises Unusable, PlanError."""
    place, rate = _prepare(experiment, options)
    _check_faults(experiment, place)
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{experiment.name}-{secrets.token_hex(2)}"
    folder = runs_folder() / name
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise Unusable(f"{folder}: {error.strerror}; EXASERVE_HOME names another place") from None
    return _Runner(experiment, options, place, rate, name, folder).run()


def describe(experiment: Experiment, options: Options) -> list[str]:
    """What ``run`` would do, as lines; nothing is done. Raises Unusable."""
    place, rate = _prepare(experiment, options)
    plan = experiment.plan
    lines = [
        f"{experiment.name}: {experiment.title}",
        f"place {place.name}, {rate:g} requests/s of {plan.load.profile}",
    ]
    for given in _injections(experiment):
        fault, target = str(given.get("fault")), str(given.get("target", "any"))
        try:
            for one, engine, steps_ in _dry(given, place):
                lines.append(f"{fault} on {one.name} by {engine.name}, for {given.get('duration', 60)} s")
                lines += [f"  do   {inject_text(step)}" for step in steps_.do]
                lines += [f"  undo {inject_text(step)}" for step in steps_.undo]
        except ActivityFailed as error:
            lines.append(f"{fault} on {target}: refused: {error}")
    lines += [
        f"goal  {judge.Goal(name, allowed, None).text().partition(', ')[2]}: {name}"
        for name, allowed in plan.goals.items()
    ]
    return [*lines, f"runbook {plan.runbook}", "Nothing was done."]


def inject_text(step: Any) -> str:
    from chaos import steps

    return steps.text(step)


def _prepare(experiment: Experiment, options: Options) -> tuple[Place, float]:
    """The place, with its addresses in the environment, where the experiment's configuration looks for them."""
    try:
        ensure_experiment_is_valid(copy.deepcopy(experiment.content))
    except ChaosException as error:
        raise PlanError(f"{experiment.path}: {error}") from None
    try:
        place = places.open(options.place)
        place.addresses |= {name: url.rstrip("/") for name, url in options.addresses.items() if url}
        place.nodes()
    except (ActivityFailed, ImportError) as error:
        raise Unusable(f"--place {options.place}: {error}") from None
    for name in ("router", "admin", "prometheus"):
        if not place.addresses.get(name):
            raise Unusable(f"{place.name} does not say where its {name} is; --{name} URL does")
    for name, url in place.addresses.items():
        os.environ[f"EXASERVE_{name.upper()}"] = url
    rate = options.rate or experiment.plan.load.rate
    os.environ["EXASERVE_PLACE"] = options.place
    os.environ["EXASERVE_RATE"] = f"{rate:g}"
    if options.target:
        os.environ["EXASERVE_TARGET"] = options.target
    return place, rate


def _injections(experiment: Experiment) -> list[dict[str, Any]]:
    configuration = load_configuration(experiment.content.get("configuration") or {})
    return [substitute(copy.deepcopy(given), configuration, {}) for given in experiment.injections()]


def _dry(given: dict[str, Any], place: Place) -> list[Any]:
    return inject.dry_run(
        str(given.get("fault")),
        str(given.get("target", "any")),
        place,
        float(given.get("duration", 60.0)),
        given.get("parameters") or {},
        int(given.get("max_affected", 1)),
        bool(given.get("allow_last", False)),
    )


def _check_faults(experiment: Experiment, place: Place) -> None:
    """A fault that can't be done here is told before anything begins; an unwell fleet is for the steady state to tell."""
    try:
        well = all(r.in_rotation for r in place.replicas())
    except ActivityFailed:
        return
    if not well:
        return
    for given in _injections(experiment):
        try:
            _dry(given, place)
        except Refused as error:
            raise Unusable(str(error)) from None


class _Runner:
    """One call of ``run``: one load, one page of series, several runs."""

    def __init__(
        self, experiment: Experiment, options: Options, place: Place, rate: float, name: str, folder: Path
    ) -> None:
        self.experiment, self.plan, self.options, self.place = experiment, experiment.plan, options, place
        self.rate, self.name, self.folder = rate, name, folder
        self.screen = Screen(options.quiet)
        self.page = Page()
        self.watch = Watch(place.addresses["admin"], place.addresses["prometheus"])
        self.load: load.Load | None = None
        self.outcomes: list[Outcome] = []

    def run(self) -> list[Outcome]:
        say = self.screen.say
        say(f"{self.experiment.title} ({self.place.name}); everything goes to {self.folder}")
        handler = _log_to(self.folder / "chaos.log")
        self.page.begin(self.experiment.name, self.name, self.plan.goals, self.plan.window)
        self.page.serve(recover.folder().parent / "targets")
        self.watch.start()
        try:
            void = self._start_load()
            for i in range(self.options.repeat):
                name = self.name if self.options.repeat == 1 else f"{self.name}-{i + 1}"
                if i:
                    self._wait_well()
                self._once(name, void)
                if self.outcomes[-1].journal is None or self._interrupted():
                    break
        finally:
            self._end(handler)
        if self.options.repeat > 1:
            report.write_summary(self.folder, self.outcomes)
        return self.outcomes

    def _interrupted(self) -> bool:
        journal = self.outcomes[-1].journal
        return journal is not None and journal.get("status") in ("interrupted", "aborted")

    # --- before ---------------------------------------------------------------------------------------

    def _start_load(self) -> list[str]:
        """The load and Prometheus' first words of it; why the runs are void, if it does not come."""
        chosen = self.plan.load
        each = self.plan.baseline + self.plan.settle + 240.0
        self.screen.say(f"load: {self.rate:g} requests/s of {chosen.profile}, {chosen.arrivals} arrivals")
        try:
            self.load = load.Load(
                self.place.addresses["router"],
                self.rate,
                min(load.MAX_SECONDS, each * self.options.repeat),
                chosen.max_tokens,
                chosen.profile,
                chosen.arrivals,
                chosen.options,
                self.folder / "load",
            )
            load.adopt(self.load)
            self.load.wait_for_first()
        except ActivityFailed as error:
            return [str(error)]
        self.screen.follow(self.load, self.watch)
        self.screen.say("waiting until Prometheus has seen it")
        end = time.monotonic() + _DATA
        for promql in self.plan.data:
            while not self._answers(promql):
                if time.monotonic() >= end:
                    return [f"Prometheus has no data for {promql}"]
                time.sleep(0.5)
        return []

    def _answers(self, promql: str) -> bool:
        try:
            return bool(web.query(self.place.addresses["prometheus"], promql))
        except ActivityFailed:
            return False

    def _wait_well(self) -> None:
        """Until the probes of the steady state would hold again, as far as they can be asked beside the toolkit."""
        self.screen.say("waiting until the fleet is itself again")
        hypothesis = self.experiment.content.get("steady-state-hypothesis") or {}
        configuration = load_configuration(self.experiment.content.get("configuration") or {})
        end = time.monotonic() + _WELL
        while time.monotonic() < end:
            if all(_holds(probe, configuration) for probe in hypothesis.get("probes") or []):
                return
            time.sleep(1.0)

    # --- one run --------------------------------------------------------------------------------------

    def _once(self, name: str, void: list[str]) -> None:
        folder = self.folder if name == self.name else self.folder / name.removeprefix(f"{self.name}-")
        started = time.time()
        known = {path.stem for path, _ in recover.records()}
        self.page.begin(self.experiment.name, name, self.plan.goals, self.plan.window)
        if void:
            verdict = Verdict()
            for reason in void:
                verdict.void(reason)
            self._finish(name, folder, started, None, verdict, None, None, [])
            return
        timeline.forget()
        self._wait_until(max(started, self.load.began if self.load else started) + self.plan.baseline)
        journal = self._toolkit()
        faults = judge.injections(journal) if journal else []
        if faults:
            self._settle(faults)
        self._undo()
        left = self._left(known)
        seen, figures, problems = self._measure(faults, journal, started)
        verdict = judge.judge(journal, self.plan.goals, figures.values if figures else {}, left, problems)
        self._finish(name, folder, started, journal, verdict, seen, figures, faults)

    def _toolkit(self) -> dict[str, Any] | None:
        content = copy.deepcopy(self.experiment.content)
        settings = {"runtime": {"rollbacks": {"strategy": "always"}}}
        try:
            journal: dict[str, Any] = run_experiment(
                content,
                settings,
                strategy=Strategy.DEFAULT,
                event_handlers=[self.screen, _Faults(self.page, self.experiment)],
            )
            return journal
        except (ChaosException, KeyboardInterrupt) as error:
            self.screen.say(f"it did not get to its end: {error or type(error).__name__}")
            return None

    def _settle(self, faults: list[dict[str, Any]]) -> None:
        """Watch on, so that three windows can follow, and for as long as requests of the run are open."""
        self.screen.say("watching how it goes on")
        last = max(self.plan.settle, IN_A_ROW * self.plan.window, CAPACITY_SPAN) + self.plan.window
        self._wait_until(time.time() + last)
        self.ended = time.time()
        assert self.load is not None
        end = time.monotonic() + _OPEN
        while time.monotonic() < end:
            if (
                max((r.get("due") or 0.0 for r in self.load.records()), default=0.0) > self.ended
                and not self._open()
            ):
                return
            time.sleep(0.25)

    def _open(self) -> list[dict[str, Any]]:
        """Requests that were due before the end and of which no record has come, as records."""
        assert self.load is not None
        records = [r for r in self.load.records() if r.get("due") is not None]
        of: dict[int, dict[int, float]] = {}
        for record in records:
            of.setdefault(record["worker"], {})[record["number"]] = record["due"]
        found = []
        for dues in of.values():
            before = [number for number, due in dues.items() if due <= self.ended]
            for number in range(max(before, default=-1)):
                if number not in dues:
                    due = next((dues[n] for n in range(number, -1, -1) if n in dues), 0.0)
                    found.append({"outcome": "open", "due": due, "sent": due, "first": None, "ended": None})
        return found

    def _measure(
        self, faults: list[dict[str, Any]], journal: dict[str, Any] | None, started: float
    ) -> tuple[Seen | None, Figures | None, list[str]]:
        """What was seen, the figures, and why the load says nothing, if it does not."""
        if not faults or self.load is None:
            return None, None, []
        injected = min(float(f["injected_at"]) for f in faults)
        begun = max(started, injected - self.plan.baseline)
        records = [
            r for r in [*self.load.records(), *self._open()] if (r.get("ended") or self.ended) >= begun - 1.0
        ]
        records = [r for r in records if (r.get("due") or r.get("sent") or 0.0) <= self.ended]
        seen = Seen(
            begun=begun,
            injected=injected,
            proven=max(float(f["proven_at"] or f["injected_at"]) for f in faults),
            undone=_undone(faults, journal, self.ended),
            ended=self.ended,
            victims=self._victims(faults),
            records=records,
            timeline=self.watch.seen.between(begun, self.ended),
            objective=self.plan.objective,
            window=self.plan.window,
            least=self.plan.least,
            retries=audit.retries(self._audit(), {str(r.get("request_id")) for r in records}),
        )
        return seen, compute(seen), _load_problems(seen, self.plan.window, self.load)

    def _audit(self) -> Path | None:
        regions = getattr(self.place, "regions", None)
        return audit.folder(regions[0]["run"]) if regions else None

    def _victims(self, faults: list[dict[str, Any]]) -> tuple[str, ...]:
        """Replicas that bear the faults: the targets, or those on the targets' nodes."""
        if self.plan.victims:
            return tuple(self.plan.victims)
        names = {str(f["target"]).partition("/")[0] for f in faults if "/" not in str(f["target"])}
        try:
            on = {node.name: node.replicas for node in self.place.nodes()}
            replicas = {r.name for r in self.place.replicas()}
        except ActivityFailed:
            return tuple(sorted(names))
        found = {name for name in names if name in replicas}
        for name in names:
            found |= set(on.get(name, []))
        return tuple(sorted(found))

    # --- after ----------------------------------------------------------------------------------------

    def _undo(self) -> None:
        """What the rollbacks may have left; a failure shows in what is left behind."""
        try:
            actions.undo_fault()
        except ActivityFailed as error:
            self.screen.say(f"not undone: {error}")

    def _left(self, known: set[str]) -> list[str]:
        """Undo records that came in this run, and what engines see without one."""
        left = [f"{path} (exaserve chaos recover)" for path, _ in recover.records() if path.stem not in known]
        for module in recover.engine_modules():
            look: Callable[[Place], list[str]] | None = getattr(module, "leftovers", None)
            if look is not None and not left:
                try:
                    left += look(self.place)
                except (ActivityFailed, OSError) as error:
                    self.screen.say(f"{module.__name__} could not look for what is left: {error}")
        self.page.put("undo_pending", float(len(left)))
        return left

    def _finish(
        self, name: str, folder: Path, started: float, journal: dict[str, Any] | None, verdict: Verdict,
        seen: Seen | None, figures: Figures | None, faults: list[dict[str, Any]],
    ) -> None:  # fmt: skip
        outcome = Outcome(
            self.experiment,
            name,
            folder,
            started,
            time.time(),
            journal,
            verdict,
            faults,
            seen,
            figures,
            self.place.name,
            self.rate,
        )
        self.outcomes.append(outcome)
        _publish(self.page, outcome)
        try:
            report.write(outcome)
        except OSError as error:
            self.screen.say(f"the report can't be written: {error}")
        self._mark(outcome)
        for reason in verdict.reasons:
            self.screen.say(f"  {reason}")
        for goal in verdict.goals:
            self.screen.say(f"  {'held  ' if goal.held else 'missed'}  {goal.text()}")
        self.screen.say(f"{verdict.state}: {folder / 'report.html'}")

    def _mark(self, outcome: Outcome) -> None:
        if not self.options.grafana:
            return
        tags = [self.experiment.name, outcome.verdict.state]
        spans = [(f"{self.experiment.name}: {outcome.verdict.state}", outcome.started, outcome.ended)]
        if outcome.seen is not None:
            spans += [
                (f"{f['fault']} on {f['target']}: {f['proof']}", f["injected_at"], outcome.seen.undone)
                for f in outcome.faults
            ]
        for text, start, end in spans:
            if (
                why := grafana.mark(self.options.grafana, self.options.grafana_token, text, start, end, tags)
            ) is not None:
                self.screen.say(why)
                return

    def _end(self, handler: logging.Handler) -> None:
        self._undo()
        self.screen.stop()
        load.adopt(None)
        if self.load is not None:
            self.load.stop()
        self.watch.stop()
        self.page.linger()
        self.page.close()
        logging.getLogger("chaostoolkit").removeHandler(handler)
        handler.close()

    def _wait_until(self, at: float) -> None:
        while (left := at - time.time()) > 0:
            time.sleep(min(left, 0.2))


class _Faults(Screen):
    """Tells the page when faults come and go; and has SIGTERM end a run as Ctrl-C does.

    The toolkit's own handler raises an exception that it then takes for the failure of the activity that runs.
    """

    def __init__(self, page: Page, experiment: Experiment) -> None:
        super().__init__(quiet=True)
        self._page, self._experiment = page, experiment
        self._active: list[tuple[str, str]] = []

    def started(self, experiment: Any, journal: Any) -> None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)

    def activity_completed(self, activity: Any, run: Any) -> None:
        func = (activity.get("provider") or {}).get("func")
        output = run.get("output")
        if func == "inject_fault" and run.get("status") == "succeeded" and isinstance(output, list):
            for one in output:
                key = (str(one["fault"]), str(one["target"]))
                self._active.append(key)
                self._page.put("fault_active", 1, *key)
                self._page.put("fault_injected_timestamp_seconds", one["injected_at"], *key)
                self._page.put("undo_pending", float(len(self._active)))
        elif func == "undo_fault":
            for key in self._active:
                self._page.put("fault_active", 0, *key)
            self._page.put("undo_pending", 0)


def _holds(probe: dict[str, Any], configuration: dict[str, Any]) -> bool:
    """Whether a probe of ours would be within its tolerance; those of others are taken as such."""
    from chaoslib.hypothesis import within_tolerance

    provider = probe.get("provider") or {}
    func = getattr(probes, str(provider.get("func")), None)
    if provider.get("module") != "chaos.probes" or func is None:
        return True
    try:
        arguments = substitute(copy.deepcopy(provider.get("arguments") or {}), configuration, {})
        return bool(within_tolerance(probe.get("tolerance"), func(**arguments), configuration, {}))
    except (ActivityFailed, TypeError):
        return False


def _undone(faults: list[dict[str, Any]], journal: dict[str, Any] | None, ended: float) -> float:
    """When the last fault was taken out: the end of ``undo_fault``, else the fault's own end."""
    from datetime import datetime

    ends = []
    for activity in [*((journal or {}).get("run") or []), *((journal or {}).get("rollbacks") or [])]:
        if ((activity.get("activity") or {}).get("provider") or {}).get(
            "func"
        ) == "undo_fault" and activity.get("end"):
            at = datetime.fromisoformat(str(activity["end"]))
            ends.append(at.timestamp() if at.tzinfo else at.replace(tzinfo=_utc()).timestamp())
    own = max(float(f["until"]) for f in faults)
    return min([own, ended, *ends[:1]])


def _utc() -> Any:
    from datetime import UTC

    return UTC


def _load_problems(seen: Seen, window: float, running: load.Load) -> list[str]:
    """Why the load says nothing: it ended early, sent late, or nothing was asked before the fault."""
    problems = []
    if not running.running:
        problems.append(f"the load ended before the run did: {running.last_words()}")
    timed = [r for r in seen.records if r.get("due") is not None and r.get("sent") is not None]
    late = [r for r in timed if r["sent"] - r["due"] > window / 2]
    if len(late) > _LATE * max(1, len(timed)):
        problems.append(
            f"the load could not keep up: {len(late)} of {len(timed)} requests were sent over {window / 2:g} s late; "
            "give it more CPU, or a lower --rate"
        )
    if not any((r.get("ended") or seen.ended) < seen.injected for r in seen.records):
        problems.append("no request ended before the fault, so there is nothing to compare with")
    return problems


def _publish(page: Page, outcome: Outcome) -> None:
    """The figures and the verdict."""
    figures = outcome.figures
    if figures is not None:
        page.put("resolution_seconds", figures.resolution)
        for fault in outcome.faults:
            key = (str(fault["fault"]), str(fault["target"]))
            page.put("fault_active", 0, *key)
            for name in ("detection", "reroute", "slo_recovery", "capacity_recovery"):
                page.put(f"{name}_seconds", figures.values.get(name), *key)
        for name in ("lost_requests", "cut_streams", "recomputed_tokens"):
            page.put(f"{name}_total", figures.values.get(name))
    page.state(outcome.verdict.state)


def _log_to(path: Path) -> logging.Handler:
    """The toolkit's own words go to a file."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("chaostoolkit")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    return handler
