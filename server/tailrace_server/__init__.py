"""Tailrace."""
