"""Running an experiment and judging it: load beside it, what was seen, figures, a verdict, a report.

What an experiment says is ``plan.py``; ``runner.py`` has it run by the Chaos Toolkit and calls the rest. Faults and how
they are undone belong to ``chaos/inject.py``, the load to ``loadtest/``.
"""
