"""The release of `one_shot`, between machines that do not trust each other.

`documents` is what was agreed on. All that comes over the network comes to one web service,
`aggregator_server`, which bounds its connections (`limited_http`, `places`) and requests (`door`,
`aggregator_limits`).

With `secagg` a user's `endpoint` answers the operator's questions, which its `attendance` fetches.
The `operation` of the operator runs a session through its `coordinator`: `connections` prove who is
there by signed `orders`, then SecAgg+ runs over the relay, whose `polling` gives questions out. A
killed operator goes on from the `record`, people read its `progress`, and `model_task` is what a
federation computes. With `flower_app` Flower brings the polls to that service.

Protocol `shares` needs no sessions: `aggregator_app` is the service of an aggregator, to which an
`aggregator_client` reports.
"""
