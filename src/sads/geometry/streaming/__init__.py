"""Networks too large to build: a layer's weights are drawn just before it runs, and dropped."""
