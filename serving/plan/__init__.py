"""How much hardware a model needs: ``exaserve plan``. Arithmetic alone; nothing is started, read or measured here.

``shape.py`` reads what a model is, ``weights.py``, ``cache.py`` and ``memory.py`` count bytes, ``ladder.py`` says how
far a replica has to be spread and how many replicas there are, ``measured.py`` takes rates from a load test's run.
"""
