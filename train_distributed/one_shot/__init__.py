"""Many users' rows, one sum, one model and its report; what a user submits."""
