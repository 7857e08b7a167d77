"""What bench/storage.py is made of, one file a question, beside ../_server.py (a node of one's own) and ../_report.py.

data.py         the rows
ingest.py       20 million mutations: rates, memory, what is written, what is left on disk
growth.py       the same at growing sizes: restarts and gets
write_queue.py  the write queue in this process: snapshots, memory
reading.py      gets, a local reader, a consumer over TCP
latency.py      writes beside a compaction
paced.py        a bare writer, a process of its own
plots.py        the pictures in bench/plots
"""
