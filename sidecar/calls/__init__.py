"""The life of a call, from the gates to its outcome. Knows no transport and no backend."""
