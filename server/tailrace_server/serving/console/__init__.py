"""The HTTP listener: ``app`` makes the answers, ``listener`` serves them."""

from __future__ import annotations

from tailrace_server.serving.console.app import make_app
from tailrace_server.serving.console.listener import http_listener

__all__ = ["http_listener", "make_app"]
