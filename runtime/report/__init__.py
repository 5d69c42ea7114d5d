"""Shows runs, several seeds, or several of them beside each other: a page of HTML, a table, a picture."""
