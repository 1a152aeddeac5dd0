"""A small cluster on one machine, to break: ``exaserve lab up``.

Nodes are network, mount, process and host-name namespaces, each held together by one process (``init.py``);
a bridge joins them to the control node, which is the machine itself. ``state.py`` says what a lab consists of,
``network.py``, ``storage.py``, ``node.py`` and ``control.py`` make it, ``teardown.py`` removes it whatever is
left of it (``faults.py`` takes out what was in), ``faultfs.py`` is the shared storage. Injecting faults belongs to ``chaos/faults``.
"""
