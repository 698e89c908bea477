"""Networks of other libraries as encoders of ours."""
