"""What a process is doing right now, for ``exaserve inspect``: facts, stacks, and what to look at next."""
