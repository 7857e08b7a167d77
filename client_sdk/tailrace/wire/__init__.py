"""The wire protocol, sans-IO: frames (``frames``), messages (``messages``) and errors (``failures``)."""
