"""Shows and compares runs and seeds: an HTML page, a table, a picture."""
