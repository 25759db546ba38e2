"""Credentials: what they are, where they come from, and how they are kept fresh and unseen.

What a provider needs is imported only where one is configured, so this package names nothing of its own: import its
modules.
"""
