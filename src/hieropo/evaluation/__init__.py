"""What a policy is worth, and whom it would hurt, from a log."""
