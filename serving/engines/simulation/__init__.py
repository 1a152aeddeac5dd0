"""The parts of the simulated replica: scheduler, text, metrics page, OpenAI shapes, HTTP server, faults.

``serving/engines/simulated.py`` puts them together. They use asyncio and the standard library only (and
httptools), so that hundreds of replicas start in seconds on one machine.
"""
