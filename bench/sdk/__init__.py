"""A caller and workers through the public SDK, as its users write them."""
