"""Code that the locustfiles share.

``locust -f loadtest/`` enters every subfolder, also one with a leading underscore, and runs each ``*.py``
whose **file** name has no leading underscore as a locustfile. So the modules here are named ``_….py``:
locust skips them, and Python imports them once, as ``loadtest._lib._….``.
"""
