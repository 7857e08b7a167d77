"""Writes the tables of docs/reference/metrics.md anew: ``python -m tests.docs.metrics_page``."""

from __future__ import annotations

import re
from pathlib import Path

from tailrace_server.serving.metrics.catalogue import SUBJECTS, table

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
BEGIN = "<!-- made by tests/docs/metrics_page.py -->\n"


def tables():
    """The part of the page that is made from the catalogue."""
    return "\n".join(f"## {subject}\n\n{table(metrics)}" for subject, metrics in SUBJECTS.items())


def with_tables(page):
    """The page with the present tables: they are all that follows the mark."""
    return re.sub(f"{re.escape(BEGIN)}.*", lambda _: BEGIN + "\n" + tables(), page, flags=re.S)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
