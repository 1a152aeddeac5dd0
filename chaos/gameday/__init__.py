"""Game days: the experiments on a real cluster. Runbook: ``runbooks/GameDay.md``.

Kubernetes: ``mesh.py`` says what a fault is there, ``manifests.py`` writes it for an experiment. Slurm and bare metal: the
faults themselves, over ssh (``chaos/places/cluster.py``); ``check.py`` finds out beforehand whether the day can begin.
"""
