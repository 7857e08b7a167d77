"""Replicas: who leads, what followers have told, and what waits for a majority of a set."""
