"""Public encoders: image readers, SimCLR pretraining, conversion, probes."""
