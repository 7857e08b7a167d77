"""What bench/streams.py is made of, one file a question, beside ../_server.py (a node of one's own) and ../_report.py.

fan_out.py    1, 8, 64 consumers of one feed: rows a second, the node's processor time for each
latency.py    from a write to its delivery, idle and under load, beside Redis Streams
barriers.py   barriers of an idle feed of 1,024 partitions, and beside a stream of 5 GB; rounds in which few have news
rollback.py   a follower goes back by its ring
idle.py       1,000 streams without news
drains.py     consumers that look at nothing but frames' headers; a process of its own
receiver.py   the consumer whose deliveries latency.py times; a process of its own
idlers.py     consumers without news; a process of its own
sink.py       the consumer of 5 GB; a process of its own
processes.py  how the bench talks to these
"""
