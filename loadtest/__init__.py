"""Load tests: every ``*.py`` here without a leading underscore is a locustfile. Shared code: ``_lib/``."""
