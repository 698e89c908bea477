"""A Flower app that carries `secagg`: polls of parties through Flower to the operator's service.

    party's process <-Unix socket-> ClientApp <-SuperNode, SuperLink-> ServerApp <-HTTPS-> operator

The ServerApp brings each node what the operator's service has answered to its party's last poll.
The ClientApp hands it to the party's own process (`party`), whose next poll goes the same way back.
So Flower sees what anybody on the line sees: polls that parties have signed, orders that the
operator has signed, and messages that are encrypted end to end. Keys, rows and journals stay with
the processes of `federation start`. A node cannot answer for another party, whose signature it does
not have; whatever Flower loses, sends twice or starts again is asked for again.

This folder is the app: `flwr run train_distributed/federation/flower_app`. The two apps need
nothing but Flower, by what `flwr.app`, `flwr.clientapp` and `flwr.serverapp` export.
"""
