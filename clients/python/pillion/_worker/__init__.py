"""The worker: hosts tools and runs them."""
