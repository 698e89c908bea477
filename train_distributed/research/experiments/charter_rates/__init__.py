"""Charter's rates compared with gradient descent's: its paper's experiment."""
