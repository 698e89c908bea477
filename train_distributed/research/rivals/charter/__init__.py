"""Private cutting planes: few bits, one record used at most once."""
