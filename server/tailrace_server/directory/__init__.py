"""The small files of a data directory."""
