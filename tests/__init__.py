"""What the product promises, as sentences that can fail."""
