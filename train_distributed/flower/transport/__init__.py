"""What talks to the network: two kinds of process that carry byte strings and know no secrets.

The operator runs the *hub*: Flower's state behind a `gate` of eight calls, a `door` with limits,
and a `post` of questions. A party runs a *carrier*: a `fleet` connection that fetches questions
and brings answers, each one query in Flower's `envelope`. Both are started by `processes` with
nothing but a socket (`frames`), and give up what they can (`sandbox`) before they speak to anyone.
"""
