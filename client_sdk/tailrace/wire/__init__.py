"""The wire protocol, sans-IO: frames (``frames``), what they carry (``messages``) and errors (``failures``)."""
