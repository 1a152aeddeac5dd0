"""Programs that ask what may hang for ever, each in a process of its own. Arguments in, one JSON value out.

They import nothing of ExaServe, so that starting one costs little. Starting them is ``apart.py``.
"""
