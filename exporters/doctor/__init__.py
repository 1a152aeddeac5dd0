"""``exaserve doctor``: is this node, or are these nodes, fit to serve? A preflight that changes nothing.

A check is one file in ``checks/`` with one ``register`` at its end; ``check.py`` says what it gets and gives.
``run.py`` runs them, each within its time limit; what can hang for ever (a stuck mount, a lost GPU) is asked by a
child process in ``probes/``. ``gather.py`` brings results from other nodes, ``compare.py`` compares them,
``table.py`` and ``result.py`` write them down. What is watched all the time belongs to the collectors.
"""
