"""Train score models and sample from them, as the paper does."""
