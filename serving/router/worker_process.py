"""``python -m serving.router.worker_process``: a worker, compiled where it can be; what it does is in ``worker.py``."""

from serving import compiled

if __name__ == "__main__":
    compiled.use()
    from serving.router.worker import main

    main()
