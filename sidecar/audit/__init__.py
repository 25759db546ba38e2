"""What was done, for whom and how it ended, in a chain that shows what was changed of it since."""
