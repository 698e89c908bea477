"""The release of `one_shot`, between machines that do not trust each other.

`documents` is what was agreed on; `transport` carries byte strings over Flower. In between, a
party's `endpoint` (a `request_handler`, with `share_endpoint` for shares) answers the operator's
questions, behind a `supernode`. The operator's `superlink` runs a session through its
`coordinator`: `connections` prove who is there by signed `orders`, then SecAgg+, `run_shares` or
`run_replicated` run over the `relay`, with users' messages in `portions`. A killed operator goes on
from the `record`, people read its `progress`, and `model_task` is what a federation computes.
"""
