"""``exaserve report``: one page about one run, and the same as Markdown and JSON.

``_folder`` finds and checks the run, ``_lines`` reads its requests once, ``_times`` cuts them into windows,
``_definitions`` has the words, ``_compare`` the baseline; ``_figures`` and ``_timelines`` draw, ``_page``, ``_markdown`` and ``_cli``
write. Every number of a table comes from ``summary.json``, that is from all requests; only plots are thinned out.
"""
