"""Files of rows, as `tailrace import` reads and `tailrace export` writes them: JSON lines, CSV, Parquet, Arrow.

    formats.py      the formats, and the one that a file's name tells
    sources.py      opens a file, or the standard input, and tells how far it was read
    json_lines.py, delimited.py, arrow_files.py     a file ──> records, each with its place
    fields.py       a record ──> Put or Delete, by the names of its fields
    batches.py      changes ──> batches, the same ones each time that the file is read
    targets.py      rows ──> a file

Import imports pyarrow only for Parquet and Arrow.
"""
