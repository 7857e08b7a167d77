"""Frames through WebSocket without sockets: the engine that both shells use, and errors that say what to do."""

from tailrace.websocket.engine import WebSocketEngine

__all__ = ["WebSocketEngine"]
