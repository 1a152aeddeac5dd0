"""The faults, one a file: its name is the fault's, ``FAULT`` the fault. How to add one: ``chaos/README.md``."""
