"""The release of `one_shot`, between machines that do not trust each other.

`documents` is what was agreed on; `transport` carries byte strings over Flower. In between, a
user's `endpoint` answers the operator's questions, behind a `supernode`. The operator's `superlink`
runs a session through its `coordinator`: `connections` prove who is there by signed `orders`, then
SecAgg+ runs over the `relay`. A killed operator goes on from the `record`, people read its
`progress`, and `model_task` is what a federation computes.

Protocol `shares` needs no sessions: `aggregator_app` is a web service, to which an
`aggregator_client` reports.
"""
