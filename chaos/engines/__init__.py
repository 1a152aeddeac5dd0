"""Mechanisms that several faults share, one a file: signals, the simulated engine's own faults, helper programs, …

A module may have ``leftovers(place)`` and ``clear_leftovers(place)``: what of its kind is there without a record.
"""
