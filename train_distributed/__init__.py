"""All users: partition, accounting, noise, one secure sum, release."""
