"""Two kinds of process that talk to the network: they carry byte strings and know no secrets.

The operator runs the *hub*, `operator_server`: Flower's state behind a `fleet_api` of eight calls,
connections with limits (`limited_http`), and a `message_queue` of questions. A party runs a
*carrier*: a `fleet` connection that fetches questions and brings answers, each one query in
Flower's `envelope`. Both are started by `processes` with nothing but a socket (`frames`), and give
up what they can (`sandbox`) before they speak to anyone.
"""
