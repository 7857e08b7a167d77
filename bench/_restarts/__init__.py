"""What bench/restarts.py is made of, beside ../_server.py (a node of one's own) and ../_report.py.

made.py   data directories with a journal of so many records, made in seconds and without a node that serves
"""
