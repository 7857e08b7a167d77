"""The HTTP listener: ``app`` says what is answered, ``listener`` serves it."""

from __future__ import annotations

from tailrace_server.serving.console.app import make_app
from tailrace_server.serving.console.listener import http_listener

__all__ = ["http_listener", "make_app"]
