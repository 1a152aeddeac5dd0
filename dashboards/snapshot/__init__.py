"""Draws generated boards from Prometheus into one self-contained HTML page: ``exaserve dashboards snapshot``.

For an incident report, and for where no Grafana is at hand. What a board asks is the board's own (``boards/``);
here is only how Grafana would show it. From address to page: ``prometheus`` asks, ``span`` and ``variables`` put
values for Grafana's variables, ``data`` and ``fields`` say what is drawn and how, one module for each kind of panel
draws it, ``take`` does this for whole boards and ``page`` puts them on a page. The command is in ``dashboards/cli.py``.
"""
