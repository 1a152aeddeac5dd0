"""Runs an experiment: load, watching, the Chaos Toolkit, figures, verdict, report; once or several times.

The Chaos Toolkit carries the method out in this process; what it makes of it is in its journal, which ``judge.py``
reads. Faults end with this process whatever happens to it (``chaos/inject.py``).
"""

from __future__ import annotations

import copy
import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaoslib import substitute
from chaoslib.configuration import load_configuration
from chaoslib.exceptions import ActivityFailed, ChaosException
from chaoslib.experiment import run_experiment
from chaoslib.types import Strategy

from chaos import actions, load, probes, recover, timeline, web
from chaos.place import Place
from chaos.run import grafana, judge, measure, report
from chaos.run.figures import CAPACITY_SPAN, IN_A_ROW, Figures, Seen, compute
from chaos.run.judge import Verdict
from chaos.run.plan import Experiment
from chaos.run.prepare import Options, Unusable, check_faults, prepare
from chaos.run.publish import Faults, publish
from chaos.run.report import Outcome
from chaos.run.screen import Screen
from chaos.run.series import Page
from chaos.run.timeline import Watch

_DATA = 90.0  # seconds for Prometheus to have what the experiment asks of it
_WELL = 180.0  # seconds for the fleet to be itself again between two injections
_CUT_SHORT = ("interrupted", "aborted")
_OPEN = 15.0  # seconds for requests of the run that are still open


def runs_folder() -> Path:
    """Where runs are kept: ``chaos/runs`` in ``$EXASERVE_HOME``."""
    return recover.folder().parent / "runs"


def run(experiment: Experiment, options: Options) -> list[Outcome]:
    """Run it ``repeat`` times, write the reports, return what came of each. Raises Unusable, PlanError."""
    place, rate = prepare(experiment, options)
    check_faults(experiment, place)
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{experiment.name}-{secrets.token_hex(2)}"
    folder = runs_folder() / name
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise Unusable(f"{folder}: {error.strerror}; EXASERVE_HOME names another place") from None
    return _Runner(experiment, options, place, rate, name, folder).run()


class _Runner:
    """One call of ``run``: one load, one page of series, several runs."""

    def __init__(
        self, experiment: Experiment, options: Options, place: Place, rate: float, name: str, folder: Path
    ) -> None:
        self.experiment, self.plan, self.options, self.place = experiment, experiment.plan, options, place
        self.rate, self.name, self.folder = rate, name, folder
        self.window = self.plan.window_at(rate)
        self.screen = Screen(options.quiet)
        self.page = Page()
        self.watch = Watch(place.addresses["admin"], place.addresses["prometheus"])
        self.load: load.Load | None = None
        self.outcomes: list[Outcome] = []

    def run(self) -> list[Outcome]:
        say = self.screen.say
        say(f"{self.experiment.title} ({self.place.name}); everything goes to {self.folder}")
        handler = _log_to(self.folder / "chaos.log")
        self.page.begin(self.experiment.name, self.name, self.plan.goals, self.window)
        try:
            self.page.serve(self.options.metrics_port, recover.folder().parent / "targets")
        except OSError as error:
            raise Unusable(
                f"--metrics-port {self.options.metrics_port}: {error.strerror}; take another, or 0 for any"
            ) from None
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
        return journal is not None and journal.get("status") in _CUT_SHORT

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
        self.page.begin(self.experiment.name, name, self.plan.goals, self.window)
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
        self.ended = time.time()
        if faults and journal is not None and journal.get("status") not in _CUT_SHORT:
            self._settle()
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
                event_handlers=[self.screen, Faults(self.page)],
            )
            return journal
        except (ChaosException, KeyboardInterrupt) as error:
            self.screen.say(f"it did not get to its end: {error or type(error).__name__}")
            return None

    def _settle(self) -> None:
        """Watch on, so that three windows can follow, and for as long as requests of the run are open."""
        self.screen.say("watching how it goes on")
        last = max(self.plan.settle, IN_A_ROW * self.window, CAPACITY_SPAN) + self.window
        self._wait_until(time.time() + last)
        self.ended = time.time()
        assert self.load is not None
        end = time.monotonic() + _OPEN
        while time.monotonic() < end:
            records = self.load.records()
            later = any((r.get("due") or 0.0) > self.ended for r in records)
            if later and not measure.still_open(records, self.ended):
                return
            time.sleep(0.25)

    def _measure(
        self, faults: list[dict[str, Any]], journal: dict[str, Any] | None, started: float
    ) -> tuple[Seen | None, Figures | None, list[str]]:
        """What was seen, the figures, and why the load says nothing, if it does not."""
        if not faults or self.load is None:
            return None, None, []
        seen = measure.seen(
            self.plan, self.place, self.load, self.watch.seen, faults, journal, started, self.ended
        )
        return seen, compute(seen), measure.load_problems(seen, self.window, self.load)

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
        publish(self.page, outcome)
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


def _log_to(path: Path) -> logging.Handler:
    """The toolkit's own words go to a file."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("chaostoolkit")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    return handler
