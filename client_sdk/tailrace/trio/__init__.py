"""The trio shell: the client's public classes and everything of the client that does I/O under trio."""
