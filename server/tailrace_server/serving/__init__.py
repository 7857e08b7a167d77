"""Serves connections: frames in, answers and streams out."""
