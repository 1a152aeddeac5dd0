"""What is asked: a profile a file, each a function that makes sessions (``_ask.py``), and what they are made of.

A profile: ``_chat``, ``_multi_turn``, ``_long_document``, ``_code``, ``_completion``, ``_embedding``, ``_batch``,
``_mixed``, ``_overlong``, ``_intents``; all of them in ``_table``. Each says how long its prompts and answers are
(``SIZES``), how many requests a session has on average (``ASKS``), and what it is (``ABOUT``).
Material: ``_text`` with ``_english`` and ``_chinese``, ``_source``, ``_questions``; ``_lengths``. ``_settings``: what
holds for all profiles of a run. A new profile: a file like ``_chat.py``, a line in ``_table.py``, a locustfile.

Everything a session asks follows from its ``draw`` (seeded), its ``unique`` text and the settings.
"""
