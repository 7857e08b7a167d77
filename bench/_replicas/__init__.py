"""What bench/replicas.py, catch_up.py and segment_mode.py are made of, beside ../_server.py (a node of one's own).

ingest.py     rows a second at levels disk and quorum, with 0, 1, 2 followers, and the leader's processor time
latency.py    single writes at quorum, beside etcd
failover.py   the leader is killed and another member promoted
handover.py   the longest wait of a writer while the leader changes on purpose
away.py       a follower that was away catches up, beside a consumer
nodes.py      a node alone, a leader with replicas, a set
blocks.py     blocks of rows for single partitions, made before, and a writer of them at a given rate
etcd.py       three members of an etcd and clients
relay.py      counts the bytes between two nodes; a process of its own
taker.py      a consumer that says when it has got what; a process of its own
plots.py      the picture of catch_up.py
reader.py     a consumer that catches up; a process of its own
"""
