"""Tailrace and its peers: their servers, a client of each, what is measured, and the report."""
