"""Files of a federation: terms, parties, spent sessions; written whole, read without trust.

A *party* gives out one signed file; the operator makes a *federation* of them, whose `task` holds
the *terms*, and hands out an *invitation*. `document` is how a stranger's JSON is read,
`certificates` are what TLS wants; `sessions` are those that a folder took part in, the *ledger*
adds up what it has given away, and a run leaves its `run_log`.
"""
