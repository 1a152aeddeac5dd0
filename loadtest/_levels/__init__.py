"""``exaserve loadtest``: the right locust command for each level of load, printed and run."""
