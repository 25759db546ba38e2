"""A caller and a worker over bare stubs: what the sidecar does when its peers cost next to nothing."""
