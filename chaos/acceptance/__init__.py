"""The acceptance matrix: eight things that a fleet must come through, each tried, measured, and told on one page.

``rows.py`` says which rows there are, ``*_rows.py`` what each does, ``bench.py`` how a fault is watched under load,
``runner.py`` runs them on a lab, ``page.py`` writes the page. Faults and their undo are ``chaos/inject.py``'s, figures
are ``chaos/run/figures.py``'s; whole experiments with steady states are ``chaos/experiments``.
"""
