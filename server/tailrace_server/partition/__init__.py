"""Keeps one partition: its blocks and segments, and the checks of what comes in."""
