"""The gate of upgrades: does a candidate answer as fast as the baseline? ``exaserve gate``, README.md here.

Load comes from locust with the locustfiles above; what a run's numbers mean is decided there (``_lib``).
"""
