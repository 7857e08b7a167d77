"""How writes come in: what is checked before a block gets its seqs (door.py)."""
