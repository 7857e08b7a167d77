"""The metrics of a node for Prometheus.

    plain numbers of their owners ──> readers, some partitions in a turn ──> Samples ──> text, in a thread

Nothing is counted for each mutation. ``catalogue.py`` names every metric, and makes the table of the reference.
"""

from __future__ import annotations
