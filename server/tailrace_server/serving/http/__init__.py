"""The parts that all answers over HTTP share: those of the console, and those of the feeds.

answers      JSON as an answer, and the address of a client
origin       whether a page is the node's own                                         pure
headers      the headers of all answers                                               pure
certificate  the certificate of a client
identified   notes that a client is known
patience     keeps the connection of a silent client
"""
