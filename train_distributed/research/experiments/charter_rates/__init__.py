"""Charter's rates beside gradient descent: its paper's experiment."""
